"""Texts that are taken for a secret, and texts that are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_cluster.config.project import Project
from spark_cluster.config.recipes import load_recipe
from spark_cluster.config.secret import is_secret_setting, looks_secret, masked

SECRETS = (
    ("HF_TOKEN", "x"),
    ("AWS_SECRET_ACCESS_KEY", "abc"),
    ("AWS_ACCESS_KEY_ID", "abc"),
    ("OPENAI_KEY", "x1"),
    ("MY_PASS", "hello"),
    ("DB_PASSWORD", "1"),
    ("GITHUB_PAT", "abc"),
    ("hf-token", "abc"),
    ("MYTOKEN", "abc"),
    ("ANY", "hf_abcdefghijkl"),
    ("ANY", "AKIA" + "A" * 16),
    ("ANY", "ghp_" + "a" * 36),
    ("ANY", "see sk-ant-abcdefghijklmnop"),
    ("ANY", "-----BEGIN OPENSSH PRIVATE KEY-----"),
    ("HTTP_PROXY", "http://u:p@h:1"),
    ("REDIS_URL", "redis://:pw@host:6379/0"),
    ("MY_PASS", "20240101"),
    ("MYPASS", "hello"),
    ("LMCACHE_PWD", "hello"),
    ("LMCACHE_PWD", "20240101"),
    ("AUTH", "Basic dXNlcjpwYXNz"),
    ("HTTP_AUTHORIZATION", "Bearer abcdefghijkl"),
    ("MY_AUTH", "user:x"),
    ("HEADERS", '{"Authorization": "Bearer aB3defgh"}'),
    ("SLACK_WEBHOOK", "https://hooks.example/T0/B0/xyz"),
    ("SLACK_WEBHOOK_URL", "https://hooks.example/T0/B0/xyz"),
    ("ANY", "https://hooks.slack.com/services/T0/B0/xyz"),
    ("SMTP_PASS", "100"),
    ("ROOT_PASS", "fuse_norm"),
    ("ENABLE_PASS", "cisco_lab"),
    ("PASS", "hello"),
    ("COMPILE_PASS", "hunter2"),
    ("COMPILE_PASS", "Fuse_Norm"),
    ("NUM_PASS", "20240101"),
    ("MAX_PASS", "hello"),
    ("FUSION_PASS_TOKEN", "fuse_norm"),
    ("VLLM_API_KEY_AUTH", "user:x"),
    ("HEADERS", "X-Api: Basic dXNlcjpwYXNzd29yZDE="),
    ("HEADERS", "X-Api: Bearer eyJhbGciOi.eyJzdWIi.c2lnbmF0dXJl1"),
    ("HEADERS", '{\\"authorization\\": \\"Basic dXNlcjpwYXNz\\"}'),
)
PLAIN = (
    ("TOKENIZERS_PARALLELISM", "false"),
    ("max-num-batched-tokens", "8192"),
    ("RAY_AUTH_MODE", "token"),
    ("VLLM_USE_KEY_CACHE", "1"),
    ("HF_TOKEN_PATH", "/x"),
    ("SSL_KEY_FILE", "/x"),
    ("KEYBOARD", "de"),
    ("NCCL_DEBUG", "INFO"),
    ("tokenizer", "org/m"),
    ("AWS_REGION", "eu-west-1"),
    ("ANY", ""),
    ("ANY", "https://hf.co/a:b"),
    ("ANY", "task-sk-short"),
    ("BYPASS", "1"),
    ("BYPASS", "yes please"),
    ("ENABLE_FUSION_PASS", "1"),
    ("FUSION_PASS_THRESHOLD", "0.125"),
    ("EOS_KEY", "151643"),
    ("PWD", "/home/me"),
    ("OLDPWD", "/home/me"),
    ("AUTH_METHOD", "ldap"),
    ("AUTH", "none"),
    ("RAY_AUTH", "token"),
    ("ANY", "Bearer tokens are sent in a header"),
    ("ANY", "Basic knowledge of French"),
    ("ANY", "Authorization: Bearer KEY"),
    ("ANY", "Authorization: Bearer $MY_TOKEN"),
    ("ANY", "redis://host:6379/0"),
    ("COMPASS", "north"),
    ("NUM_PASS", "100"),
    ("COMPILE_PASS", "fuse_norm"),
    ("FUSION_PASS_LEVEL", "aggressive"),
    ("VLLM_API_KEY_AUTH", "disabled"),
    ("HTTP_AUTH", "enabled"),
    ("hf-overrides", '{"a": "Basic Attention"}'),
    ("ANY", "Bearer FlashAttention"),
    ("ANY", "Basic block_size=16"),
)


@pytest.mark.parametrize(("name", "value"), SECRETS, ids=str)
def test_a_secret(name: str, value: str) -> None:
    assert is_secret_setting(name, value)


@pytest.mark.parametrize(("name", "value"), PLAIN, ids=str)
def test_no_secret(name: str, value: str) -> None:
    assert not is_secret_setting(name, value)


def test_nothing_that_ships_is_taken_for_one() -> None:
    project = Project(Path(__file__).parent)
    for name in project.list("recipes"):
        load_recipe(name, project)
    assert not looks_secret((project.shipped / "README.md").read_text())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("HF_TOKEN=x1 is set", "HF_TOKEN=*** is set"),
        ('{"hf_token": "a b", "n": 3}', '{"hf_token": "***", "n": 3}'),
        ('{\\"api_key\\": \\"abc\\"}', '{\\"api_key\\": \\"***\\"}'),
        ("serve --api-key abc,def --port 8000", "serve --api-key *** --port 8000"),
        ("PASSWORD='a b' c", "PASSWORD='***' c"),
        ("fetch https://user:pw@host/x now", "fetch *** now"),
        ("at https://hooks.slack.com/services/T0/B0/xyz end", "at https*** end"),
        ("a\n-----BEGIN PRIVATE KEY-----\nabc\n-----END PRIVATE KEY-----\nb", "a\n***\nb"),
        ("-----BEGIN PRIVATE KEY-----\nabc", "***"),
        ("found hf_abcdefghijkl.", "found ***"),
    ],
)
def test_secrets_in_a_log_are_masked(text, expected):
    assert masked(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "max_num_batched_tokens=8192, kv_cache_dtype=fp8, num_key_value_heads=8",
        "the token is fine, and so is the auth mode token",
        "INFO 11-20 14:12:18 [gpu_worker.py:1] Loading took 3.2 s",
        "path=/srv/models compat=1 passes: 3 key value",
        "{'token_budgets': [], 'pass_config': {'fuse_norm_quant': True}}",
    ],
)
def test_other_text_stays(text):
    assert masked(text) == text
