"""What `make gpu` printed on real GPUs, against what is published and planned today."""

from pathlib import Path

import pytest
from factories import log_of
from json_schema import document
from test_gpu_explain import FAILURES

from spark_cluster.bench.record import Record
from spark_cluster.issues.entries import catalogue
from spark_cluster.issues.explain import explain

DATA = Path(__file__).parents[1] / "data/gpu"
KEPT = DATA / "main_job"
PAIRS = {name: DATA / name for name in ("two_nodes", "two_gpus")}
"""TP=2 between two nodes of the lab of GPUs: that shared an H100, and that had one each."""


@pytest.fixture(params=PAIRS)
def two_nodes(request: pytest.FixtureRequest) -> Path:
    """The documents of a run on two nodes."""
    return PAIRS[request.param]


@pytest.mark.parametrize(
    ("file", "schema"),
    [("up", "up"), ("status", "status"), ("vram_serving", "vram"), ("vram_after", "vram")],
)
def test_its_documents_fit_their_schemas(file, schema):
    document(schema, (KEPT / f"{file}.json").read_text())


def test_its_start_is_read_as_planned():
    found = explain([log_of((DATA / "main_job_start.log").read_text(), "vllm")]).facts
    assert found["attention"] == "TRITON_ATTN"
    planned = (KEPT / "transcript.txt").read_text()
    assert f"(vLLM prints {found['KV tokens']} tokens)" in planned


@pytest.mark.parametrize(
    ("file", "schema"),
    [
        *[(f"up_{executor}{run}", "up") for executor in ("ray", "mp")
          for run in ("", "_again", "_repaired")],
        *[("vram_ray", "vram"), ("vram_mp", "vram"), ("bench_fabric", "bench-fabric")],
    ],
)  # fmt: skip
def test_the_documents_of_two_nodes_fit_their_schemas(two_nodes, file, schema):
    document(schema, (two_nodes / f"{file}.json").read_text())


@pytest.mark.parametrize(
    ("file", "cause"),
    [
        ("folder", "model-path-missing"),
        ("quantization", "quantization-unknown"),
        ("length", "context-beyond-model"),
        ("value", "wrong-flag-value"),
        ("gate", "start-gate"),
        ("load", "memory-held-by-others"),
    ],
)
def test_the_cause_of_each_provoked_failure(file, cause):
    found = explain([log_of((DATA / f"failures/{file}.log").read_text(), "vllm")])
    assert found.cause.finding.id == cause


def test_failures_that_are_provoked_are_of_the_catalogue():
    assert {failure.issue for failure in FAILURES.values()} <= catalogue().keys()


def test_a_benchmark_of_one_and_two_nodes_is_read(two_nodes):
    """Of a model as small as the lab's, TP=2 pays more for sockets than a second GPU gives."""
    run = Record.model_validate_json((two_nodes / "bench_dual.json").read_text())
    assert [(setup.tp, len(setup.nodes)) for setup in run.setups] == [(1, 1), (2, 2)]
    one, two = (cell.metrics["output_tps"].mean for cell in run.cells)
    assert one > two > 0
