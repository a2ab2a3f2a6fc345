"""`down`: it ends well only when the GPUs' memory is back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from factories import SHIPPED

from spark_cluster.errors import Refused, VerificationFailed
from spark_cluster.facts.model import Facts, Gpu, Process
from spark_cluster.inference.job import Job
from spark_cluster.runner.events import Bus
from spark_cluster.serving import admission, holders, ray_cluster, vram
from spark_cluster.serving.memory_phases import MemoryPhases
from spark_cluster.serving.vram import NodeVram

FREE = [NodeVram(name, (), 1000, 990) for name in ("spark1", "spark2")]
HELD = [NodeVram("spark1", (Process(7, "VLLM::Worker", 900),), 1000, 100), FREE[1]]


class Play:
    """A play as far as `down` asks it; keeps what was applied."""

    check = False

    def __init__(self, gpu: str = "NVIDIA GB10") -> None:
        facts = Facts(gpu=Gpu(gpu, "12.1", "580"))
        self.nodes = [SimpleNamespace(name=name, facts=facts) for name in ("spark1", "spark2")]
        self.head = self.nodes[0]
        self.jobs: list[Job] = []
        self.servers: dict[str, str] = {}
        self.applied: list[str] = []
        self.notes: list[str] = []
        self.memory = MemoryPhases()
        self.bus = Bus(self.memory)

    def session(self, node: SimpleNamespace) -> SimpleNamespace:
        done = {"status": 0, "stdout": self.servers.get(node.name, "")}
        pending = SimpleNamespace(wait=lambda: {"commands": {"servers": done}})
        return SimpleNamespace(submit=lambda _operation, commands: pending)

    def on_each(self, nodes: list[SimpleNamespace], job: Callable[[Any], None]) -> None:
        for node in nodes:
            job(node)

    def note(self, text: str, *, warning: bool = False, node: Any = None) -> None:
        self.notes.append(f"{node.name}: {text}" if node else text)

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
    monkeypatch.setattr(ray_cluster, "running_jobs", lambda play: play.jobs)
    return told


def down(play: Play | None = None, **given: object) -> tuple[Any, Play]:
    play = play or Play()
    return SHIPPED.load_playbook("down").function(play, **given), play


def test_it_waits_until_the_memory_is_back(readings: list[list[NodeVram]]) -> None:
    readings += [HELD, HELD, HELD, FREE]
    stopped, play = down()
    assert (stopped.before, stopped.now) == (HELD, FREE)
    found = {node.node: (node.before, node.stopped) for node in play.memory.nodes.values()}
    assert found == {one.name: (one.used_mib, 0) for one in HELD}
    programs = ("spark-bench", "spark-tune", "spark-vllm")
    first = [f"spark{n} Container:{program}" for program in programs for n in (1, 2)]
    assert play.applied[:2] == ["spark1 role model_loader", "spark2 role model_loader"]
    assert play.applied[2 : 2 + len(first)] == first
    assert "spark2 Container:spark-ray" in play.applied
    assert play.applied[-2:] == ["spark1 role firewall", "spark2 role firewall"], "and it last"


def test_running_jobs_are_ended_only_on_request(readings: list[list[NodeVram]]) -> None:
    readings += [FREE]
    play = Play()
    play.jobs = [Job("job-1", "RUNNING")]
    for given, hint in (({"end_jobs": False}, True), ({}, False)):
        with pytest.raises(Refused, match="job job-1 is running on Ray") as caught:
            down(play, **given)
        assert ("--end-jobs" in caught.value.hint) is hint, "where the command has it"
    assert play.applied == []
    down(play, end_jobs=True)
    assert "spark1 Container:spark-ray" in play.applied


def test_memory_that_does_not_come_back(
    readings: list[list[NodeVram]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vram, "FREE_WITHIN_S", 0.05)
    readings += [HELD]
    said = r"VLLM::Worker \(pid 7, 900 MiB\) on spark1"
    with pytest.raises(VerificationFailed, match=said) as caught:
        down()
    assert caught.value.exit_code == 5


def test_memory_that_is_not_available_again(
    readings: list[list[NodeVram]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No process is listed any more; on a Spark what counts is the memory of the machine."""
    monkeypatch.setattr(vram, "FREE_WITHIN_S", 0.05)
    readings += [HELD, [NodeVram("spark1", (), 1000, 500), FREE[1]]]
    _, play = down()
    assert "spark1: no process holds GPU memory, but MemAvailable is 410 MiB lower" in play.notes[0]


def test_a_gpu_with_memory_of_its_own_gives_none_to_the_machine(
    readings: list[list[NodeVram]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On an H100 `down` waited 30 s for memory of the machine that the engine had not taken."""
    monkeypatch.setattr(vram.time, "sleep", lambda _s: pytest.fail("there is nothing to wait for"))
    readings += [HELD, [NodeVram("spark1", (), 1000, 100), FREE[1]]]
    _, play = down(Play("NVIDIA H100 80GB HBM3"))
    assert play.notes == []


OLLAMA = Process(9, "/usr/local/bin/ollama", 50)
BESIDE = [NodeVram("spark1", (OLLAMA, *HELD[0].processes), 1000, 50), FREE[1]]
LEFT = [NodeVram("spark1", (OLLAMA,), 1000, 950), FREE[1]]


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's process is in our container; Ollama's is not."""
    found = {"spark1": {7}, "spark2": set[int]()}
    monkeypatch.setattr(admission, "our_processes", lambda _play, _names, _programs: found)


@pytest.mark.usefixtures("ours")
def test_other_programs_may_keep_theirs_in_a_swap(readings: list[list[NodeVram]]) -> None:
    readings += [BESIDE, BESIDE, LEFT]
    assert down(keep_others=True)[0].now == LEFT


@pytest.mark.usefixtures("ours")
def test_other_programs_are_named_by_down(
    readings: list[list[NodeVram]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vram, "FREE_WITHIN_S", 0.05)
    readings += [BESIDE, LEFT]
    with pytest.raises(VerificationFailed, match=r"ollama \(pid 9, 50 MiB\) on spark1") as caught:
        down()
    assert "--unload ollama" in caught.value.hint


@pytest.mark.usefixtures("ours")
@pytest.mark.parametrize("check", [False, True])
def test_models_of_ollama_are_unloaded_on_request(
    readings: list[list[NodeVram]], monkeypatch: pytest.MonkeyPatch, check: bool
) -> None:
    loaded = {"spark1": [holders.Loaded("gemma3", 50)], "spark2": []}
    unloaded: list[str] = []
    ollama = holders.Holder(
        "Ollama",
        lambda _session, where: loaded[where],
        lambda _session, where, models: unloaded.extend(f"{where} {m}" for m in models),
    )
    monkeypatch.setattr(holders, "HOLDERS", {"ollama": ollama})
    readings += [BESIDE, LEFT, FREE]
    play = Play()
    play.check = check
    down(play, unload=("ollama",), keep_others=True)
    assert unloaded == ([] if check else ["spark1 gemma3 (50 MiB)"])
    verb = "would unload" if check else "unloaded"
    assert f"spark1: Ollama: {verb} gemma3 (50 MiB)" in play.notes
    assert "spark2: Ollama has no model loaded, or is not running" in play.notes


def test_the_servers_of_several_models_are_ended_wherever_they_are(
    readings: list[list[NodeVram]],
) -> None:
    """Also those that the endpoint's description does not name any more."""
    readings += [FREE]
    play = Play()
    play.servers = {"spark1": "spark-vllm-chat\nspark-vllm-words\n"}
    down(play)
    ended = [name for name in play.applied if "Container:spark-vllm" in name]
    for name in ("spark-vllm", "spark-vllm-chat", "spark-vllm-words"):
        assert f"spark1 Container:{name}" in ended
