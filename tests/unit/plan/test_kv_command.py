"""`predict kv` as its users see it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cases import each_row
from click.testing import CliRunner, Result
from json_schema import document as fits

from spark_cluster import Cluster
from spark_cluster.cli.app import App
from spark_cluster.cli.predict import kv_command as command
from spark_cluster.errors import UsageError


def call(*words: str, as_json: bool = True) -> Result:
    app = App(Cluster(), as_json=as_json)
    return CliRunner().invoke(command, [*words], obj=app, env={"COLUMNS": "100"})


def document(*words: str) -> dict[str, Any]:
    result = call(*words)
    assert result.exit_code == 0, result.output
    name = "predict-kv-device" if "--device" in words else "predict-kv"
    found: dict[str, Any] = fits(name, result.output)
    return found


PART_9 = ["--model", "nvidia/Gemma-4-31B-IT-NVFP4", "--kv-dtype", "fp8", "--kv-gib", "66.95"]
PART_9 += ["--max-model-len", "32768", "--max-num-batched-tokens", "2048", "--tp", "1"]
PART_9 += ["--vllm-version", "0.19.0"]
PLAIN = ["--model", "google/gemma-4-31B-it", "--kv-gib", "8", "--max-model-len", "32768"]


def test_as_the_oracle_by_default_and_as_a_spark_when_asked() -> None:
    found = document(*PLAIN, "--vllm-version", "0.32.0")
    assert (found["tokens"], found["blocks_per_request"]) == (53835, 1994)
    spark = document(*PLAIN, "--vllm-version", "0.32.0", "--device", "gpu")
    assert spark["blocks_per_request"] == 1024 + 5 * 321
    assert found["on_a_spark"] == spark


def test_the_screen_shows_both_where_they_differ() -> None:
    both = call(*PLAIN, "--vllm-version", "0.32.0", as_json=False).output
    assert "1.25" in both
    assert "1.64" in both
    assert "two batches in flight" in both
    one = call(*PART_9, as_json=False).output
    assert "27.57" in one
    assert "146,240" in one
    assert "in flight" not in one


MTP_4 = '{"method": "mtp", "num_speculative_tokens": 4}'


@pytest.fixture
def qwen(tmp_path) -> str:
    """Qwen3.6-27B, as a folder."""
    rows = json.loads(
        (Path(__file__).parents[3] / "benchmarks/predictions/shapes.json").read_text()
    )
    (found,) = (row for row in rows["models"] if row["name"] == "Qwen/Qwen3.6-27B")
    (tmp_path / "config.json").write_text(json.dumps(found["config"]))
    return str(tmp_path)


def test_a_drafter_takes_its_part_of_the_cache(qwen) -> None:
    """Published log: 1,316,513 tokens in 47.65 GiB with MTP-4 (styles01, 27 July 2026)."""
    words = ["--model", qwen, "--kv-dtype", "fp8", "--kv-gib", "47.65", "--max-model-len", "262144"]
    words += ["--vllm-version", "0.23.1", "--prefix-caching", "--device", "gpu"]
    found = document(*words, "--speculative-config", MTP_4)
    assert (found["tokens"], found["max_concurrency"]) == (1_316_513, 5.02)
    assert document(*words)["tokens"] > 1.1 * found["tokens"], "without it too many"


def test_a_drafter_of_unknown_shape_is_said_to_be_left_out() -> None:
    words = ["--speculative-config", '{"method": "eagle3", "model": "nobody/drafter"}']
    said = call(*PLAIN, *words, as_json=False).output
    assert "the drafter's own layers are not counted" in said
    assert "not counted" not in call(*PLAIN, as_json=False).output


def test_a_request_that_does_not_fit() -> None:
    said = call("--model", "google/gemma-4-31B-it", "--kv-gib", "1", as_json=False).output
    assert "does not start" in said
    assert "--max-model-len 11" in said


def test_a_folder_and_an_unknown_family(tmp_path) -> None:
    config = {"model_type": "brand_new", "num_hidden_layers": 2, "num_attention_heads": 4}
    config |= {"hidden_size": 64, "intermediate_size": 64, "vocab_size": 512}
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = ["--model", str(tmp_path), "--kv-gib", "1"]
    with pytest.raises(UsageError, match="--max-model-len"):
        CliRunner().invoke(command, words, obj=App(Cluster()), catch_exceptions=False)
    said = call(*words, "--max-model-len", "1024", as_json=False).output
    assert "'brand_new' is not known" in said


@each_row(__file__, "kv_command.toml", "mistakes")
def test_mistakes(words: list[str]) -> None:
    assert isinstance(call(*PLAIN, *words).exception, UsageError)
