"""`vram --run` and `--plot`: the memory of a recorded run, by phase and over time."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from cases import each_row
from json_schema import document as fits

from spark_cluster.bench.report import rendering
from spark_cluster.cli import run as record_module
from spark_cluster.cli.run import RunRecord, keep_plot
from spark_cluster.engine import vram
from spark_cluster.runner.events import Event, MemoryHeld, MemoryPlanned, RunStarted

RUN = "20261120-141502-3fa9"
NODES = ("spark1", "spark2")
EVENTS: tuple[Event, ...] = (
    RunStarted(RUN, "up --tp 2", NODES),
    *(MemoryHeld(node, "before", 0, 119_000, at=100.0) for node in NODES),
    *(MemoryPlanned(node, 60_000, 100_000) for node in NODES),
    *(
        MemoryHeld(node, "loading", used, 119_000 - used, at=110.0 + used / 1000)
        for node in NODES
        for used in (20_000, 98_000, 97_000)
    ),
    *(MemoryHeld(node, "ready", 98_000, 21_000, at=300.0) for node in NODES),
    *(MemoryHeld(node, "under_load", 98_700, 20_300, at=301.0) for node in NODES),
)


@pytest.fixture
def recorded(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The record of a run, its last line torn, between others that read no memory."""
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(rendering, "PNG_DPI", 10)
    record = RunRecord(RUN)
    for event in EVENTS:
        record.take(event)
    record.close()
    with record.path.open("a") as out:
        out.write('{"event": "MemoryHeld", "node": "spark1", "used_mi')
    for other in ("20261120-101502-0000", "20261121-101502-0000"):
        RunRecord(other).close()
    return record.path


def test_by_phase_and_as_a_plot(run, recorded, tmp_path):
    status, out, _ = run("vram", "--plot", "memory.svg")
    assert status == 0
    assert f"{RUN}  up --tp 2" in out
    assert (
        "spark1: before 0, loading 98000, ready 98000, under load 98700 MiB; "
        "1,300 less than planned (100,000)" in out
    )
    drawn = (tmp_path / "memory.svg").read_text()
    for text in (*NODES, "GPU memory: up --tp 2", "planned: 97.7", "loading", "under load", "min"):
        assert text in drawn
    status, out, _ = run("vram", "--run", RUN, "--json")
    assert fits("vram-run", out)["memory"][1]["under_load"] == 98_700


@each_row(__file__, "vram_run.toml", "what_cannot_be_shown")
def test_what_cannot_be_shown(run, recorded, words, said, status):
    code, out, err = run("vram", *words.split())
    assert (code, said in out + err) == (status, True), out + err


def test_up_keeps_the_plot_next_to_the_record(recorded, monkeypatch):
    told: list[Event] = []
    bus: Any = SimpleNamespace(emit=told.append)
    phases = vram.read(recorded).phases()
    assert keep_plot(RUN, bus, phases) == recorded.with_suffix(".svg")
    assert "under load" in recorded.with_suffix(".svg").read_text()
    for node in phases.nodes.values():
        node.under_load = None
    assert keep_plot(RUN, bus, phases) is None, "nothing was started"
    monkeypatch.setattr(rendering, "is_installed", lambda: False)
    assert keep_plot(RUN, bus, vram.read(recorded).phases()) is None
    assert told == []


def test_a_plot_that_cannot_be_kept_fails_nothing(recorded):
    told: list[Any] = []
    bus: Any = SimpleNamespace(emit=told.append)
    recorded.with_suffix(".svg").mkdir()
    assert keep_plot(RUN, bus, vram.read(recorded).phases()) is None
    assert [(one.level, "no plot of the memory" in one.text) for one in told] == [("warning", True)]


def test_a_plot_goes_with_its_record(recorded, monkeypatch):
    plot = recorded.with_suffix(".svg")
    plot.write_text("<svg/>")
    monkeypatch.setattr(record_module, "KEPT", 3)
    RunRecord("20270102-000000-0000").close()
    assert (recorded.exists(), plot.exists()) == (False, False)


def test_history_names_the_plot(recorded):
    from spark_cluster.cli.history import _details

    answer = {"run": RUN, "entries": []}
    assert _details(RUN, {"spark1": answer}, {}).memory_plot is None
    recorded.with_suffix(".svg").write_text("<svg/>")
    found = _details(RUN, {"spark1": answer}, {}).memory_plot
    assert found == str(recorded.with_suffix(".svg"))
