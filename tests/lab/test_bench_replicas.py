"""Two replicas on real vLLM behind their endpoint, under the load of one real llama-benchy."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench_results import bench_user, record
from commandline import WAIT_S, CommandLine, until

from spark_cluster.bench.on_node import FOLDER
from spark_cluster_lab import LabNode

pytestmark = [pytest.mark.lab, pytest.mark.soak]

SUITE = """\
name: pair
recipes: [lab-paris]
prompt: [16, 32]
output: [512]
concurrency: [3]
replicas: 2
runs: 2
settings: {coherence: false}
"""
CELLS = 2
NODES = ("spark1", "spark2")


@pytest.fixture(scope="module")
def user(lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    with bench_user(lab, tmp_path_factory.mktemp("replicas"), {"pair": SUITE}, NODES) as made:
        yield made


def files(node: LabNode, pattern: str) -> list[str]:
    """Names of what is in the folders of the steps on a node."""
    found = node.run(["sh", "-c", f"ls {FOLDER}/*/*/{pattern} 2>/dev/null || true"]).stdout
    return [Path(line).name for line in found.splitlines()]


def measured(node: LabNode) -> list[str]:
    return files(node, "cells/*.json")


def test_it_goes_on_without_the_laptop(user, spark1, spark2):
    run = user.start("bench", "run", "pair", "--out", "one")
    until(lambda: measured(spark1), what="the first cell's results")
    run.process.send_signal(signal.SIGKILL)
    run.process.communicate()
    until(lambda: len(measured(spark1)) == CELLS, what="the node goes on by itself")
    results = ["sh", "-c", f"cat {FOLDER}/*/*/cells/*.json"]
    before = spark1.run(results).stdout
    assert measured(spark2) == [], "one load generator, next to the endpoint"

    attached(user, "one")
    assert spark1.run(results).stdout == before, "not measured twice"
    assert record(user.home / "one")["status"] == "complete"


def attached(user: CommandLine, folder: str) -> None:
    """Go on with a run until each cell has a result."""
    process = user.start("bench", "attach", folder, "--json").process
    out, err = process.communicate(timeout=WAIT_S)
    document = json.loads(out)
    assert document["cells"] == CELLS, out + err
    assert process.returncode == (1 if document["failed"] else 0)
    reasons = [c["reason"] for c in record(user.home / folder)["cells"] if c["status"] != "ok"]
    # A busy machine may get all tokens of a run at once, of which there is no speed.
    assert all(reason.endswith("runs were dropped") for reason in reasons), reasons


def test_the_record_has_both_replicas(user):
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
    before = len(files(spark1, "raw/*.log"))
    run = user.start("bench", "run", "pair", "--out", "two")
    until(lambda: len(files(spark1, "raw/*.log")) > before, what="a load of this run")
    spark2.run(["docker", "kill", "spark-vllm"])
    ran = run.end(status=None)
    assert "the server" in ran.printed
    kept = {cell["id"]: cell["started"] for cell in record(user.home / "two")["cells"]}
    assert len(kept) < CELLS
    assert user.json("bench", "status", "two")["measuring"] == ""

    attached(user, "two")
    after = {cell["id"]: cell["started"] for cell in record(user.home / "two")["cells"]}
    assert {id: after[id] for id in kept} == kept, "no cell was measured twice"
