"""`top`: as lines, as JSON lines, recorded; its end, and nodes that are away."""

from __future__ import annotations

import json

import pytest
from factories import TWO_NODES, put
from telemetry_node import nvidia_smi, put_system


@pytest.fixture
def nodes(project, piped_nodes, closed_port):
    """Two nodes with a GPU and without an engine, and the folder of the project."""
    put(project / "inventory.yaml", f"{TWO_NODES}serve: {{bind: loopback, port: {closed_port}}}\n")
    for name in ("spark1", "spark2"):
        put_system(piped_nodes[name].root)
        nvidia_smi(project / name)
    return project


def test_json_lines_of_each_node(run, nodes):
    status, out, _ = run("top", "--json", "--count", "3", "--interval", "0.2")
    told = [json.loads(line) for line in out.splitlines()]
    assert status == 0
    for name in ("spark1", "spark2"):
        mine = [line for line in told if line["node"] == name]
        assert len(mine) >= 3
        assert mine[-1]["sm_clock_mhz"] == 2411.0
        assert mine[-1]["throttle"] == "sw_thermal_slowdown"
        assert mine[-1]["rdma_rx_bytes_s"] == 0
        assert any(line["processes"] for line in mine)


def test_lines_for_people(run, nodes):
    words = ("top", "--interval", "0.2", "--limit", "spark1")
    status, out, _ = run(*words, "--count", "2", "--duration", "60")
    assert status == 0
    last = out.splitlines()[-1]
    assert " spark1: GPU 96 %, 2411 MHz, 45 W, 62 °C, free 20480 MiB, " in last
    assert last.endswith("throttled: sw_thermal_slowdown")
    status, _, err = run(*words, "--duration", "0")
    assert (status, "it has sent nothing" in err) == (3, True)


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.parquet"])
def test_a_record(run, nodes, name):
    run("top", "--count", "3", "--interval", "0.2", "--record", name)
    if name.endswith(".jsonl"):
        found = [json.loads(line) for line in (nodes / name).read_text().splitlines()]
        clocks = [line["sm_clock_mhz"] for line in found]
    else:
        from parquet_rows import read_parquet

        clocks = [row.sm_clock_mhz for row in read_parquet(nodes / name)]
    assert len(clocks) >= 6
    assert clocks[-1] == 2411.0
    status, _, err = run("top", "--count", "1", "--record", name)
    assert status == 2
    assert f"{name} exists" in err


def test_a_node_that_is_away_is_told_and_the_others_go_on(run, nodes):
    put(nodes / "inventory.yaml", TWO_NODES.replace("spark2", "lost"))
    words = ("-i", "inventory.yaml", "top", "--count", "2", "--interval", "0.2")
    status, out, err = run(*words)
    assert status == 3
    assert "lost: no answer" in out
    assert " spark1: GPU 96 %" in out
    assert "lost: error: no answer" in err
    hint = "switch it on, then `spark-cluster {}ping`"
    assert hint.format("-i inventory.yaml ") in " ".join(err.split())
    told = list(map(json.loads, run(*words, "--json")[1].splitlines()))
    loss = {"node": "lost", "message": "no answer", "where": "lost", "hint": hint.format("")}
    assert loss in told


def test_ctrl_c_is_its_usual_end(run, nodes, monkeypatch):
    from spark_cluster.bench import sampling

    come = []

    def interrupted(self, timeout):
        update = original(self, timeout)
        if update is not None:
            come.append(update)
        if len(come) > 3:
            raise KeyboardInterrupt
        return update

    original = sampling.Sampling.next
    monkeypatch.setattr(sampling.Sampling, "next", interrupted)
    status, out, _ = run("top", "--interval", "0.2")
    assert status == 0
    assert "GPU 96 %" in out


def test_on_a_terminal_it_is_drawn(run, nodes, monkeypatch):
    from spark_cluster.cli.terminal import Console

    monkeypatch.setattr(Console, "is_terminal", True)
    monkeypatch.setenv("COLUMNS", "80")
    status, out, _ = run("top", "--count", "3", "--interval", "0.2")
    assert status == 0
    assert "free MiB" in out
    assert "VLLM::Worker_TP0" in out
