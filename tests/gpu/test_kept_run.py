"""What the main job printed on a real GPU, against what is published and planned today."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from factories import log_of
from json_schema import document

from spark_cluster.known_issues.explain import explain

DATA = Path(__file__).parents[1] / "data/gpu"
KEPT = DATA / "main_job"


@pytest.mark.parametrize(
    ("file", "schema"),
    [("up", "up"), ("status", "status"), ("vram_serving", "vram"), ("vram_after", "vram")],
)
def test_its_documents_fit_their_schemas(file: str, schema: str) -> None:
    document(schema, (KEPT / f"{file}.json").read_text())


def test_its_start_is_read_as_planned() -> None:
    found = explain([log_of((DATA / "main_job_start.log").read_text(), "vllm")]).facts
    assert found["attention"] == "TRITON_ATTN"
    planned = (KEPT / "transcript.txt").read_text()
    assert f"(vLLM prints {found['KV tokens']} tokens)" in planned


def test_the_memory_of_its_one_process() -> None:
    (node,) = json.loads((KEPT / "vram_serving.json").read_text())["nodes"]
    assert [process["name"] for process in node["processes"]] == ["VLLM::EngineCore"]
    assert json.loads((KEPT / "vram_after.json").read_text())["nodes"][0]["processes"] == []
