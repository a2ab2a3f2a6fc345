"""`top`: as lines, as JSON lines, recorded; its end, and nodes that are away."""

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from factories import TWO_NODES, put
from parquet_rows import read_parquet
from telemetry_node import nvidia_smi, put_system
from waiting import HANG_S, until

from spark_cluster.bench.telemetry import lines_path, processes_path, writer
from spark_cluster.errors import UsageError
from spark_cluster.node.telemetry import SamplerSettings


@pytest.fixture
def nodes(project, piped_nodes, closed_port, monkeypatch):
    """Two nodes with a GPU and without an engine, and the folder of the project."""
    put(project / "inventory.yaml", f"{TWO_NODES}serve: {{bind: loopback, port: {closed_port}}}\n")
    for name in ("spark1", "spark2"):
        put_system(piped_nodes[name].root)
        nvidia_smi(project / name)
    below = partial(SamplerSettings, root=str(piped_nodes["spark1"].root))
    monkeypatch.setattr("spark_cluster.bench.sampling.SamplerSettings", below)
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


# --- `--record` in a process of its own that is ended by a signal ---------------------------------


PROGRAM = """\
import signal, sys, time
from datetime import UTC, datetime
from spark_cluster.bench import sampling
from spark_cluster.bench.record import ProcessMemory
from spark_cluster.bench.telemetry import TelemetryRow
from spark_cluster.cli import main

def stream(self, node):
    held = (ProcessMemory(pid=7, name="VLLM::Worker", used_mib=100),)
    while True:
        now = datetime.now(UTC)
        self._updates.put(TelemetryRow(now, node.name, sm_clock_mhz=2411.0, processes=held))
        time.sleep(0.01)

sampling.Sampling._stream = stream
ignored = sys.argv.pop(1) == "nohup"  # which the tests themselves may have been started with
signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)
main()
"""

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Begin `top --record` and wait until it has recorded something."""
    put(tmp_path / "inventory.yaml", "nodes: {spark1: {address: 192.0.2.1, roles: [head]}}\n")
    begun = []

    def begin(name: str, how: str = "plain") -> subprocess.Popen[str]:
        words = [sys.executable, "-c", PROGRAM, how, "top", "--json", "--record", name]
        process = subprocess.Popen(
            words, cwd=tmp_path, text=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        begun.append(process)
        growing = tmp_path / name
        growing = lines_path(growing) if name.endswith(".parquet") else growing

        def has_begun() -> bool:
            assert process.poll() is None, process.communicate()
            return growing.exists() and growing.read_text().count("\n") > 20

        until(has_begun, what="samples in the file")
        return process

    yield begin
    for process in begun:
        process.kill()
        process.communicate()


ONE = [[signal.SIGTERM], [signal.SIGHUP], [signal.SIGINT]]
SEVERAL = [
    [signal.SIGTERM] * 5,
    [signal.SIGINT] * 3,
    [signal.SIGHUP, signal.SIGINT, signal.SIGTERM],
    [signal.SIGINT, signal.SIGTERM, signal.SIGHUP],
]


@pytest.mark.parametrize(
    ("numbers", "pause_s"),
    [(numbers, 0) for numbers in (*ONE, *SEVERAL)] + [(numbers, 0.02) for numbers in SEVERAL],
)
def test_a_signal_ends_the_file_and_a_second_one_does_not_cut_it(start, tmp_path, numbers, pause_s):
    process = start("rows.parquet")
    for number in numbers:
        process.send_signal(number)
        time.sleep(pause_s)
    _, err = process.communicate(timeout=HANG_S)
    assert (process.returncode, err) == (0, "")
    path = tmp_path / "rows.parquet"
    rows = list(read_parquet(path))
    assert len(rows) > 20
    assert {row.sm_clock_mhz for row in rows} == {2411.0}
    assert all(row.processes and row.processes[0].used_mib == 100 for row in rows)
    names = {found.name for found in tmp_path.iterdir()}
    assert names >= {path.name, processes_path(path).name}
    assert not [name for name in names if "jsonl" in name or "new" in name]


def test_what_was_recorded_before_it_is_killed_can_be_read(start, tmp_path):
    process = start("rows.parquet")
    process.kill()
    process.communicate(timeout=HANG_S)
    path = tmp_path / "rows.parquet"
    assert not path.exists()
    *whole, _maybe_cut = lines_path(path).read_text().split("\n")
    assert len(whole) > 20
    assert {json.loads(line)["node"] for line in whole} == {"spark1"}
    with pytest.raises(UsageError, match="of a recording that was killed"):
        writer(path)


def test_of_a_folder_that_is_not_there_only_what_was_typed_is_said(tmp_path):
    typed = tmp_path / "none/rows.parquet"
    with pytest.raises(UsageError) as refused:
        writer(typed)
    assert refused.value.message == f"{typed}: there is no folder {typed.parent}"


def test_a_hang_up_that_is_ignored_stays_ignored(start, tmp_path):
    process = start("rows.jsonl", "nohup")
    process.send_signal(signal.SIGHUP)
    size = (tmp_path / "rows.jsonl").stat().st_size
    until(lambda: (tmp_path / "rows.jsonl").stat().st_size > size, what="further samples")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=HANG_S)
    assert process.returncode == 0, err
    for line in (tmp_path / "rows.jsonl").read_text().splitlines():
        assert json.loads(line)["node"] == "spark1"


def test_a_line_that_was_cut_is_left_out(tmp_path):
    path = tmp_path / "rows.parquet"
    out = writer(path)
    lines_path(path).write_text('{"time": "2026-11-22T12:00:00.000Z", "no')
    out.close()
    assert list(read_parquet(path)) == []
