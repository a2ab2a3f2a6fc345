"""What `make gpu` printed on real GPUs, against what is published and planned today."""

import json
from pathlib import Path

import pytest
from factories import log_of
from json_schema import document

from spark_cluster.bench.record import Record
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


def test_the_memory_of_its_one_process():
    (node,) = json.loads((KEPT / "vram_serving.json").read_text())["nodes"]
    assert [process["name"] for process in node["processes"]] == ["VLLM::EngineCore"]
    assert json.loads((KEPT / "vram_after.json").read_text())["nodes"][0]["processes"] == []


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
    ("executor", "titles"),
    [("ray", ["ray::RayWorkerProc.run"] * 2), ("mp", ["VLLM::Worker_TP0", "VLLM::Worker_TP1"])],
)
def test_each_of_two_nodes_has_its_own_rank(two_nodes, executor, titles):
    nodes = json.loads((two_nodes / f"vram_{executor}.json").read_text())["nodes"]
    assert [process["name"] for node in nodes for process in node["processes"]] == titles
    again = json.loads((two_nodes / f"up_{executor}_again.json").read_text())
    assert (again["answer"], again["changed"]) == ("Paris", 0)
    repaired = json.loads((two_nodes / f"up_{executor}_repaired.json").read_text())
    assert repaired["answer"] == "Paris"
    assert repaired["changed"] > 0


def test_nccl_of_two_nodes_went_over_their_sockets(two_nodes):
    found = json.loads((two_nodes / "bench_fabric.json").read_text())["fabric"]
    for node in found["nodes"]:
        assert any("via NET/Socket/0" in line for line in node["nccl_log"])
    rows = sorted(found["allreduce"], key=lambda row: row["bytes"])
    assert rows[0]["latency_us"] < rows[-1]["latency_us"]


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
    assert found.cause is not None
    assert found.cause.finding.id == cause


def test_the_plan_of_a_gemma_4_was_within_its_tolerances():
    """The ones of test_gpu_plans.py, on an H100 and not on the H200 of runs.json."""
    found = json.loads((DATA / "plan-gpu-gemma4-share.json").read_text())
    for name, tolerance in (("weights_gib", 0.01), ("kv_cache_gib", 0.05), ("vram_mib", 0.01)):
        logged = found[name]["logged"]
        assert abs(found[name]["planned"] - logged) <= tolerance * logged, name
    share = found["gpu_memory_utilization"]
    assert share["planned"] == share["logged"]


def test_a_cache_in_bytes_was_planned_to_the_token():
    found = json.loads((DATA / "plan-gpu-gemma4-bytes.json").read_text())
    for name in ("kv_tokens", "max_concurrency"):
        assert found[name]["planned"] == found[name]["logged"], name
    for name, tolerance in (("weights_gib", 0.01), ("vram_mib", 0.02)):
        logged = found[name]["logged"]
        assert abs(found[name]["planned"] - logged) <= tolerance * logged, name


def test_a_benchmark_of_one_and_two_nodes_is_read(two_nodes):
    """Of a model as small as the lab's, TP=2 pays more for sockets than a second GPU gives."""
    run = Record.model_validate_json((two_nodes / "bench_dual.json").read_text())
    assert [(setup.tp, len(setup.nodes)) for setup in run.setups] == [(1, 1), (2, 2)]
    one, two = (cell.metrics["output_tps"].mean for cell in run.cells)
    assert one > two > 0


def test_two_nodes_with_a_gpu_each_are_faster_than_two_that_share_one():
    shared, own = (
        Record.model_validate_json((folder / "bench_dual.json").read_text()).cells[1].metrics
        for folder in PAIRS.values()
    )
    assert own["output_tps"].mean > 3 * shared["output_tps"].mean
