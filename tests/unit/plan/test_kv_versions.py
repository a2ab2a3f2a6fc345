"""Our rules against the functions of many versions of vLLM, run from their sources.

Made by `python -m benchmarks.kv_oracle --sources FOLDER`: the layers are those of a GPU with blocks
of 16 tokens; a row is what `benchmarks/kv_oracle/older.py` says it is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import kv_figures
import pytest

from benchmarks.kv_oracle.older import LONGEST
from benchmarks.kv_oracle.questions import questions
from spark_cluster.models.config import from_config
from spark_cluster.models.shape import Geometry
from spark_cluster.plan.kv import NEWEST_READ, RULES

SAID: dict[str, list[list[Any]]] = json.loads(
    (Path(__file__).parents[2] / "data" / "kv_versions.json").read_text()
)


@pytest.fixture(scope="module")
def geometries() -> dict[str, Geometry]:
    return {question.name: from_config(question.config, question.name) for question in questions()}


def test_every_rule_was_asked() -> None:
    lab, default = "0.32.0", "0.28.0"  # the lab's own; a default, which these rows do not ask for
    packed = "0.21.0"  # a type of cache, neither
    assert {rule.since for rule in RULES} - {lab, default, packed} <= SAID.keys()
    assert NEWEST_READ in SAID


@pytest.mark.parametrize("version", SAID)
def test_a_version(version: str, geometries: dict[str, Geometry]) -> None:
    assert len(SAID[version]) > 100
    for row in SAID[version]:
        model, fp8, size, length, batch, flying, blocks, concurrency, block, longest = row
        found = kv_figures.cache(
            geometries[model],
            kv_bytes=size,
            max_model_len=length,
            max_num_batched_tokens=batch,
            kv_dtype="fp8" if fp8 else "bfloat16",
            vllm=version,
            async_scheduling=flying == 2,
            prefix_caching=True,
            gdn_prefill="triton",
        )
        if blocks is None:
            assert found.max_model_len < length, row
        else:
            assert (found.blocks, found.max_concurrency, found.block_size) == (
                blocks,
                concurrency,
                block,
            ), row
        assert min(found.max_model_len, LONGEST) == longest, row
