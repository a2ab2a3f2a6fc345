"""What is taken for a secret, and what is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_cluster.project import Project
from spark_cluster.recipe import load_recipe
from spark_cluster.userfiles.secret_text import is_secret_setting, looks_secret

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
    ("COMPASS", "north"),
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
