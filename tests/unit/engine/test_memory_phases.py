"""GPU memory by phase of a run, next to the plan's prediction; in the run's record too."""

import json
from dataclasses import replace
from types import SimpleNamespace

from spark_cluster.cli.run import RunRecord
from spark_cluster.config.facts import GpuProcess
from spark_cluster.config.schema import as_json
from spark_cluster.engine import vram
from spark_cluster.engine.memory_phases import MemoryOfNode, MemoryPhases
from spark_cluster.engine.vram import NodeVram
from spark_cluster.runner.events import Bus, MemoryHeld, Note


def reading(used, name="spark1"):
    return NodeVram(name, (GpuProcess(1, "vllm", used),), 120_000, 120_000 - used)


def test_phases_are_kept_next_to_the_prediction():
    phases = MemoryPhases()
    bus = Bus(phases)
    vram.record(bus, "before", [reading(0), reading(5, "spark2")])
    vram.record_plan(bus, [SimpleNamespace(name="spark1")], 50.5, 100.0)
    for phase, used in (("loading", 40_000), ("loading", 60_000), ("ready", 103_000),
                        ("under_load", 103_900), ("under_load", 103_400)):  # fmt: skip
        vram.record(bus, phase, [reading(used)])
    bus.emit(Note("something else"))
    first, second = as_json(list(phases.nodes.values()))
    assert (first["planned_loading"], first["stopped"]) == (51_712, None)
    assert (second["node"], second["before"], second["planned_ready"]) == ("spark2", 5, None)
    assert str(phases.nodes["spark1"]) == (
        "spark1: before 0, loading 60000, ready 103000, under load 103900 MiB; "
        "1,500 more than planned (102,400)"
    )
    assert str(MemoryOfNode("spark1", stopped=0, planned_ready=7)) == "spark1: stopped 0 MiB"


def test_a_phase_of_another_version_is_left_out():
    phases = MemoryPhases()
    phases.take(MemoryHeld("spark1", "to_dict", 1, 1))
    assert not phases.nodes


def test_the_course_is_recorded_as_it_goes(tmp_path, monkeypatch):
    """A start that fails leaves in the record how far it had come."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    record, phases = RunRecord("x"), MemoryPhases()
    course = vram.Course(Bus(record, phases), "loading")
    for used in (10, 30, 30, 20, 40):
        course.take([reading(used)])
    course.take([replace(reading(40), mem_available_mib=100_000)])
    record.close()
    events = [json.loads(line) for line in record.path.read_text().splitlines()]
    assert [(e["event"], e["phase"], e["used_mib"]) for e in events] == [
        ("MemoryHeld", "loading", used) for used in (10, 30, 20, 40, 40)
    ]
    assert phases.nodes["spark1"].loading == 40
