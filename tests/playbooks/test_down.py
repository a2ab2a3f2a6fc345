"""`down`: it ends well only when the GPUs' memory is back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
from factories import SHIPPED

from spark_cluster.errors import VerificationFailed
from spark_cluster.facts.model import Process
from spark_cluster.runner.events import Bus
from spark_cluster.serving import vram
from spark_cluster.serving.memory_phases import MemoryPhases
from spark_cluster.serving.vram import NodeVram

FREE = [NodeVram(name, (), 1000, 990) for name in ("spark1", "spark2")]
HELD = [NodeVram("spark1", (Process(7, "VLLM::Worker", 900),), 1000, 100), FREE[1]]


class Play:
    """A play as far as `down` asks it; keeps what was applied."""

    check = False

    def __init__(self) -> None:
        self.nodes = [SimpleNamespace(name=name) for name in ("spark1", "spark2")]
        self.applied: list[str] = []
        self.memory = MemoryPhases()
        self.bus = Bus(self.memory)

    def session(self, node: SimpleNamespace) -> str:
        return f"session with {node.name}"

    @contextmanager
    def stage(self, _name: str) -> Iterator[None]:
        yield

    def role(self, name: str, **_settings: object) -> str:
        return name

    def apply(self, nodes: list[SimpleNamespace], *what: str | list[object]) -> None:
        for one in what:
            names = [f"role {one}"] if isinstance(one, str) else [r.id for r in one]
            self.applied += [f"{node.name} {name}" for name in names for node in nodes]


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[list[NodeVram]]:
    """Readings of the GPUs, one after another; the last one stays."""
    told: list[list[NodeVram]] = []
    monkeypatch.setattr(vram, "sample", lambda _sessions: told.pop(0) if told[1:] else told[0])
    monkeypatch.setattr(vram.time, "sleep", lambda _seconds: None)
    return told


def down() -> tuple[object, Play]:
    play = Play()
    project = SHIPPED
    return project.load_playbook("down").function(play), play


def test_it_waits_until_the_memory_is_back(readings: list[list[NodeVram]]) -> None:
    readings += [HELD, HELD, HELD, FREE]
    stopped, play = down()
    assert (stopped.before, stopped.now) == (HELD, FREE)
    found = {node.node: (node.before, node.stopped) for node in play.memory.nodes.values()}
    assert found == {one.name: (one.used_mib, 0) for one in HELD}
    programs = ("spark-bench", "spark-vllm")
    first = [f"spark{n} Container:{program}" for program in programs for n in (1, 2)]
    assert play.applied[:4] == first
    assert "spark2 Container:spark-ray" in play.applied
    assert play.applied[-2:] == ["spark1 role firewall", "spark2 role firewall"], "and it last"


def test_memory_that_does_not_come_back(
    readings: list[list[NodeVram]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vram, "FREE_WITHIN_S", 0.05)
    readings += [HELD]
    said = r"VLLM::Worker \(pid 7, 900 MiB\) on spark1"
    with pytest.raises(VerificationFailed, match=said) as caught:
        down()
    assert caught.value.exit_code == 5
