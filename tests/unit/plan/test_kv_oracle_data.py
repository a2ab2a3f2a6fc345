"""Our arithmetic against what real vLLM said, for every family that it starts on a CPU.

The answers are made by `python -m benchmarks.kv_oracle` in the lab's environment. `started` is what
a started engine had; `more` is what vLLM's own functions say of the layers that this engine built,
for other sizes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kv_figures
import pytest

from benchmarks.kv_oracle.questions import questions
from spark_cluster.models.config import from_config
from spark_cluster.models.shape import Geometry

CASES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data" / "kv_oracle.json").read_text()
)


def options(case: dict[str, Any]) -> dict[str, Any]:
    """How that engine was started, in our words."""
    engine = case["engine"]
    return {
        "kv_dtype": engine.get("kv_cache_dtype", "auto"),
        "tp": engine.get("tensor_parallel_size", 1),
        "block_size": engine["block_size"],
        "prefix_caching": engine.get("enable_prefix_caching"),
        "vllm": case["answer"]["vllm"],
        "device": "cpu",
    }


def read(name: str) -> tuple[dict[str, Any], Geometry]:
    return CASES[name], from_config(CASES[name]["config"], name)


def test_every_question_has_its_answer() -> None:
    assert list(CASES) == [question.name for question in questions()]
    for question in questions():
        document = question.to_dict()
        assert {key: CASES[question.name][key] for key in document} == document


@pytest.mark.parametrize("name", CASES)
def test_a_started_engine(name: str) -> None:
    case, geometry = read(name)
    engine, said = case["engine"], case["answer"]["started"]
    found = kv_figures.cache(
        geometry,
        kv_bytes=engine["kv_cache_memory_bytes"],
        max_model_len=engine["max_model_len"],
        max_num_batched_tokens=engine["max_num_batched_tokens"],
        **options(case),
    )
    assert (found.tokens, found.max_concurrency) == (said["tokens"], said["max_concurrency"])
    unit = found.blocks // said["blocks"]
    assert found.blocks == unit * said["blocks"]
    assert unit == (2 if engine["block_size"] == 16 and any_sliding(geometry) else 1)
    blocks = [group["block_size"] for group in case["answer"]["groups"]]
    assert found.block_size == min(blocks)


def any_sliding(geometry: Geometry) -> bool:
    return any(part.kind == "sliding" for part in geometry.attention)


@pytest.mark.parametrize("name", CASES)
def test_other_sizes(name: str) -> None:
    case, geometry = read(name)
    assert len(case["answer"]["more"]) >= 2
    for said in case["answer"]["more"]:
        found = kv_figures.cache(
            geometry,
            kv_bytes=said["kv_bytes"],
            max_model_len=said["max_model_len"],
            max_num_batched_tokens=said["max_num_batched_tokens"],
            **options(case),
        )
        assert found.max_model_len == said["longest"], said
        if "refused" in said:
            assert found.max_model_len < said["max_model_len"]
        else:
            assert (found.tokens, found.max_concurrency) == (
                said["tokens"],
                said["max_concurrency"],
            ), said


def test_the_answers_are_of_many_kinds() -> None:
    """That the data has not shrunk to what is easy."""
    geometries = [read(name)[1] for name in CASES]
    assert {part.kind for each in geometries for part in each.attention} >= {
        "full",
        "sliding",
        "chunked",
    }
    assert {part.kind for each in geometries for part in each.recurrent} >= {
        "gdn",
        "mamba",
        "mamba2",
        "conv",
    }
    assert any(each.latent for each in geometries)
    assert any("refused" in said for case in CASES.values() for said in case["answer"]["more"])
    assert {case["engine"].get("tensor_parallel_size", 1) for case in CASES.values()} == {1, 2}
