"""What the main job printed on a real GPU, against what is published and planned today."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from factories import log_of
from json_schema import document

from spark_cluster.known_issues.explain import explain

DATA = Path(__file__).parents[1] / "data/gpu"
KEPT = DATA / "main_job"

LATER: dict[str, dict[str, Any]] = {
    "up": {"memory_plot": None, "vram": {"under_load": []}, "memory": [{"under_load": None}]},
    "status": {"tuned": [], "caches": {"tuned": []}, "data_parallel": 1},
}
"""Fields that were added since that run, as they are where there is nothing to say."""


def with_later(found: Any, later: Any) -> Any:
    """A kept document with the fields that it could not have."""
    if isinstance(found, list) and isinstance(later, list) and later:
        return [with_later(one, later[0]) for one in found]
    if not isinstance(found, dict) or not isinstance(later, dict):
        return found
    more = {name: value for name, value in later.items() if name not in found}
    return {**{k: with_later(v, later.get(k)) for k, v in found.items()}, **more}


@pytest.mark.parametrize(
    ("file", "schema"),
    [("up", "up"), ("status", "status"), ("vram_serving", "vram"), ("vram_after", "vram")],
)
def test_its_documents_fit_their_schemas(file: str, schema: str) -> None:
    kept = json.loads((KEPT / f"{file}.json").read_text())
    document(schema, json.dumps(with_later(kept, LATER.get(file))))


def test_its_start_is_read_as_planned() -> None:
    found = explain([log_of((DATA / "main_job_start.log").read_text(), "vllm")]).facts
    assert found["attention"] == "TRITON_ATTN"
    planned = (KEPT / "transcript.txt").read_text()
    assert f"(vLLM prints {found['KV tokens']} tokens)" in planned


def test_the_memory_of_its_one_process() -> None:
    (node,) = json.loads((KEPT / "vram_serving.json").read_text())["nodes"]
    assert [process["name"] for process in node["processes"]] == ["VLLM::EngineCore"]
    assert json.loads((KEPT / "vram_after.json").read_text())["nodes"][0]["processes"] == []
