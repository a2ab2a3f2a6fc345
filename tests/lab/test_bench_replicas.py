"""Two replicas on real vLLM, under the load of real llama-benchy at the same time."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from bench_results import bench_user, record
from commandline import WAIT_S, CommandLine, until

from spark_cluster.bench.on_node import FOLDER
from spark_cluster.config.ports import REPLICAS
from spark_cluster.lab import LabNode

pytestmark = [pytest.mark.lab, pytest.mark.soak]

SUITE = """\
name: pair
recipes: [lab-paris]
prompt: [16, 32]
output: [512]
concurrency: [2]
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


def test_both_go_on_without_the_laptop(user, spark1, spark2):
    run = user.start("bench", "run", "pair", "--out", "one")
    until(lambda: measured(spark1) and measured(spark2), what="the first cell's results")
    run.process.send_signal(signal.SIGKILL)
    run.process.communicate()
    for node in (spark1, spark2):
        until(lambda n=node: len(measured(n)) == CELLS, what="the nodes go on by themselves")
    results = ["sh", "-c", f"cat {FOLDER}/*/*/cells/*.json"]
    before = [node.run(results).stdout for node in (spark1, spark2)]

    attached(user, "one")
    assert [node.run(results).stdout for node in (spark1, spark2)] == before, "not measured twice"
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
        assert [(s["node"], s["concurrency"]) for s in cell["replicas"]] == [
            ("spark1", 1),
            ("spark2", 1),
        ]
        for share in cell["replicas"]:
            assert all((user.home / "one" / name).is_file() for name in share["raw"])
        if cell["status"] != "ok":
            continue
        assert cell["overlap"] > 0, "they were under load at the same time"
        total = cell["metrics"]["tg_tps"]["values"]
        parts = [share["metrics"]["tg_tps"]["values"] for share in cell["replicas"]]
        assert total == pytest.approx([sum(run) for run in zip(*parts, strict=True)])
        assert not any("RoCE" in text for text in cell["attention"]), "each is on one node"
    assert (user.home / "one/telemetry.parquet").stat().st_size > 1000
    assert "2 replicas on spark1, spark2" in user("bench", "show", "one").printed


def test_a_server_that_ends_is_no_half_a_result(user, spark1, spark2):
    """The replica on the second node is killed; then the run is gone on with, by both."""
    before = len(files(spark2, "raw/*.log"))
    run = user.start("bench", "run", "pair", "--out", "two")
    until(lambda: len(files(spark2, "raw/*.log")) > before, what="a load of this run")
    spark2.run(["docker", "kill", "spark-vllm"])
    ran = run.end(status=None)
    assert "spark2" in ran.printed
    assert "the head is not in this run" not in ran.printed
    kept = {cell["id"]: cell["started"] for cell in record(user.home / "two")["cells"]}
    assert len(kept) < CELLS
    assert user.json("bench", "status", "two")["measuring"] == ""

    attached(user, "two")
    after = {cell["id"]: cell["started"] for cell in record(user.home / "two")["cells"]}
    assert {id: after[id] for id in kept} == kept, "no cell was measured twice"


def test_stopped_from_the_laptop(user, spark1, spark2):
    before = len(files(spark1, "raw/*.log"))
    run = user.start("bench", "run", "pair", "--out", "three")
    until(lambda: len(files(spark1, "raw/*.log")) > before, what="a load of this run")
    user("bench", "stop", "three")
    run.end(status=None)
    until(lambda: user.json("bench", "status", "three")["measuring"] == "", what="the end")
    argv = ["sh", "-c", "pgrep -af '[w]orker.py|[l]lama_benchy' || true"]
    for node in (spark1, spark2):
        until(lambda n=node: n.run(argv).stdout == "", what="the processes' end")


def test_nothing_listens_afterwards(user, spark1):
    listening = spark1.run(["ss", "-Hltn"]).stdout
    assert f":{REPLICAS} " not in listening
