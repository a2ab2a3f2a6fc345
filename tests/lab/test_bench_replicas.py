"""Two replicas on real vLLM behind their endpoint, under the load of one real llama-benchy."""

from collections.abc import Iterator

import pytest
from bench_results import attached, bench_user, cells, record, results
from commandline import WAIT_S, CommandLine, until

from spark_cluster.bench.on_node import FOLDER

pytestmark = [pytest.mark.lab, pytest.mark.soak]

CELLS = 2
NODES = ("spark1", "spark2")


@pytest.fixture(scope="module")
def user(lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with bench_user(lab, tmp_path_factory.mktemp("replicas"), "pair", nodes=NODES) as made:
        yield made


def test_both_replicas_are_measured_by_one_load_generator(user, spark2):
    user.start("bench", "run", "pair", "--out", "one").process.communicate(timeout=WAIT_S)
    attached(user, "one", CELLS)
    assert results(spark2) == {}, "it is next to the endpoint"
    found = record(user.home / "one")
    (setup,) = found["setups"]
    assert (setup["tp"], setup["replicas"], setup["nodes"]) == (1, 2, ["spark1", "spark2"])
    assert [server["nodes"] for server in setup["servers"]] == [["spark1"], ["spark2"]]
    phases = {(reading["phase"], reading["node"]) for reading in setup["vram"]}
    assert {(phase, node) for phase in ("load_peak", "ready", "after") for node in NODES} <= phases
    held = [r for r in setup["vram"] if r["phase"] == "ready"]
    assert all(reading["processes"] for reading in held)
    freed = [r for r in setup["vram"] if r["phase"] == "after"]
    assert not any(reading["processes"] for reading in freed)
    for cell in found["cells"]:
        assert (cell["key"]["concurrency"], cell["id"].endswith("-c3")) == (3, True)
        assert all((user.home / "one" / name).is_file() for name in cell["raw"])
        assert not any("RoCE" in text for text in cell["attention"]), "each is on one node"
    requests = "".join(path.read_text() for path in (user.home / "one/raw").glob("*/raw/*.jsonl"))
    assert "http://127.0.0.1:8000/v1" in requests, "the endpoint, not one of the engines"
    assert (user.home / "one/telemetry.parquet").stat().st_size > 1000
    assert "2 replicas on spark1, spark2" in user("bench", "show", "one").printed


def test_a_replica_that_ends_is_no_half_a_result(user, spark1, spark2):
    """The replica on the second node is killed; then the run is gone on with, by both."""
    loads = ["sh", "-c", f"ls {FOLDER}/*/*/raw/*.log 2>/dev/null || true"]
    before = spark1.run(loads).stdout
    run = user.start("bench", "run", "pair", "--out", "two")
    until(lambda: spark1.run(loads).stdout != before, what="a load of this run")
    spark2.run(["docker", "kill", "spark-vllm"])
    ran = run.end(status=None)
    assert "the server" in ran.printed
    assert len(cells(user, "two")) < CELLS
    assert user.json("bench", "status", "two")["measuring"] == ""
    attached(user, "two", CELLS)
