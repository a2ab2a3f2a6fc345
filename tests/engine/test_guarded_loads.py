"""The laptop's side of the memory of nodes that load: warnings before, and the guard meanwhile."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, replace
from types import SimpleNamespace
from typing import Any

import pytest
from factories import PREPARED, make_node
from test_serving import Loading, inspected, reading_of

from spark_cluster.engine import load_guard, readiness
from spark_cluster.engine.endpoint import Endpoint
from spark_cluster.engine.engine import engine
from spark_cluster.engine.load_progress import LONGEST
from spark_cluster.errors import Failed, Interrupted
from spark_cluster.facts.model import Gpu, Memory
from spark_cluster.node.load_guard import Reason, reason_file

NODES = [make_node("spark1"), make_node("spark2", head=False)]
FRAGMENTED = "Node 0, zone   Normal  81231  40211  20102  9021  3021  811  120  27  5  0  0\n"
REASON = Reason(3_400_000, 900_000, 16_000_000, 42.17, 1_790_000_000.0)
ENDPOINT = Endpoint("10.0.0.1", 8000, "paris")


class Guarded(Loading):
    """A node that loads, and whose agent guards its memory."""

    def __init__(self, *states: str, health: int = 0, says: Any = PREPARED) -> None:
        super().__init__(*states, health=health)
        self.says = says
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.reason = ""
        self.when_begun: Callable[[], object] = lambda: None

    def submit(self, op: str, *_limit: float, files: Any = None, **what: Any) -> Any:
        if op == "load_guard":
            self.asked.append((what.pop("what"), what))
            if self.asked[-1][0] == "begin":
                self.when_begun()
            return SimpleNamespace(wait=lambda: self.says)
        if files == {"reason": reason_file("spark-vllm")}:
            return SimpleNamespace(wait=lambda: {"files": {"reason": self.reason}})
        return reading_of().submit()

    @property
    def actions(self) -> list[str]:
        return [what for what, _ in self.asked]


def play_of(*sessions: Guarded) -> Any:
    known = {node.name: session for node, session in zip(NODES, sessions, strict=False)}
    notes: list[tuple[str, str]] = []
    return SimpleNamespace(
        nodes=NODES[: len(sessions)],
        head=NODES[0],
        bus=SimpleNamespace(emit=lambda _event: None),
        session=lambda node: known[node.name],
        connections=SimpleNamespace(session=known.__getitem__),
        notes=notes,
        note=lambda text, *, warning=False, node=None: notes.append(
            (node.name if node else "", text)
        ),
    )


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readiness, "POLL_S", 0)


# -- before the load -------------------------------------------------------------------------------


def test_a_healthy_node_is_prepared_without_a_word() -> None:
    play = play_of(Guarded(), Guarded())
    load_guard.prepare(play, NODES)
    assert play.notes == []
    assert play.session(NODES[1]).actions == ["prepare"]


def test_what_is_wrong_with_the_memory_is_said_before_the_load() -> None:
    """P06: fragmented after compaction, short of memory before it, or caches that stay."""
    sick = {**PREPARED, "buddyinfo": FRAGMENTED, "pressure": 12.5, "problem": "no /proc/sys"}
    play = play_of(Guarded(), Guarded(says=sick))
    load_guard.prepare(play, NODES)
    assert {node for node, _ in play.notes} == {"spark2"}
    dropped, pressure, blocks = (text for _, text in play.notes)
    assert dropped == "the page cache was not dropped: no /proc/sys"
    assert "waited for memory for 12.5 % of the last 10 s" in pressure
    assert blocks.startswith("0.0 of 1.5 GiB free memory in blocks of 4 MiB or more, after")
    assert "reboot the node" in blocks


def test_a_gpu_with_memory_of_its_own_is_not_asked() -> None:
    """P07: its memory has no page cache."""
    gpu = Gpu("NVIDIA H200", "9.0", "580", memory=Memory(1, 1, of_gpu=True))
    node = replace(NODES[0], facts=replace(NODES[0].facts, gpu=gpu))
    head = Guarded(inspected(), health=0)
    head.states = [inspected("exited")]
    play = play_of(head)
    load_guard.prepare(play, [node])
    with pytest.raises(Failed):
        readiness.healthy(play, ENDPOINT, engine("vllm"), 60, nodes=[node])
    assert head.asked == []


# -- while it loads --------------------------------------------------------------------------------


def test_a_server_that_is_ready_already_is_not_guarded() -> None:
    """P06: no turn of the network where all is up."""
    head = Guarded(inspected(), health=200)
    readiness.healthy(play_of(head), ENDPOINT, engine("vllm"), 60, nodes=NODES[:1])
    assert head.asked == []


def test_a_load_is_guarded_on_all_nodes_until_it_is_ready() -> None:
    """P06: the head's guard asks the engine itself, so that it ends without the laptop, too."""
    head, worker = Guarded(inspected()), Guarded(inspected())
    worker.when_begun = lambda: setattr(head, "health", 200)
    readiness.healthy(play_of(head, worker), ENDPOINT, engine("vllm"), 60, nodes=NODES)
    told = {
        "server": "spark-vllm",
        "programs": ["spark-vllm", "spark-ray"],
        "limit_s": 60 * LONGEST,
    }
    assert head.asked == [
        ("begin", {**told, "health": "http://10.0.0.1:8000/health"}),
        ("end", {"server": "spark-vllm"}),
    ]
    assert worker.asked == [("begin", told), ("end", {"server": "spark-vllm"})]


@pytest.mark.parametrize("worker_state", ["running", "exited"])
def test_a_load_that_was_ended_for_memory_says_so(worker_state: str) -> None:
    """P06: the cause is the memory of a worker, not that "the rank is exited"."""
    head, worker = Guarded(inspected()), Guarded(inspected(worker_state))
    worker.when_begun = lambda: setattr(worker, "reason", json.dumps(asdict(REASON)))
    play = play_of(head, worker)
    with pytest.raises(Failed) as caught:
        readiness.healthy(play, ENDPOINT, engine("vllm"), 60, ["spark2"], nodes=NODES)
    assert caught.value.where == "spark2 spark-vllm"
    assert caught.value.message.startswith(
        "the load was ended before the node ran out of memory: 3.2 GiB were available at "
    )
    assert "spark-cluster vram" in caught.value.hint
    assert head.stopped, "Docker would start it again and again"
    assert (head.actions, worker.actions) == (["begin", "end"], ["begin", "end"])


def test_a_node_that_starts_no_guard_loads_all_the_same() -> None:
    """P06: the load is what is wanted."""
    head = Guarded(inspected())

    def refuse() -> None:
        head.health = 200
        raise Failed("no systemd", where="spark1")

    head.when_begun = refuse
    play = play_of(head)
    readiness.healthy(play, ENDPOINT, engine("vllm"), 60, nodes=NODES[:1])
    assert play.notes == [("", "spark1: memory is not guarded while weights load: no systemd")]


def test_a_laptop_that_is_interrupted_leaves_the_guard_to_the_load() -> None:
    """P06: the engine goes on loading."""
    head = Guarded(inspected())

    def interrupt(_argv: Any) -> Any:
        raise Interrupted("interrupted")

    head.when_begun = lambda: setattr(head, "run", interrupt)
    with pytest.raises(Interrupted):
        readiness.healthy(play_of(head), ENDPOINT, engine("vllm"), 60, nodes=NODES[:1])
    assert head.actions == ["begin"]


def test_a_server_that_ran_and_was_ended_for_memory_is_not_started_again() -> None:
    """P06: it would end in the same way."""
    head = Guarded(inspected("exited"))
    head.when_begun = lambda: setattr(head, "reason", json.dumps(asdict(REASON)))
    again = readiness.Again(lambda: pytest.fail("it is started"))
    with pytest.raises(Failed, match="before the node ran out of memory"):
        readiness.healthy(play_of(head), ENDPOINT, engine("vllm"), 60, nodes=NODES[:1], again=again)


def test_one_that_ended_is_started_again_after_its_memory_was_prepared() -> None:
    """P07: a server whose engine had died before this run is a start like any other."""
    head = Guarded(inspected("exited"))

    def begin() -> None:
        assert head.actions == ["begin", "end", "prepare"]
        head.health = 200

    play, again = play_of(head), readiness.Again(begin)
    readiness.healthy(play, ENDPOINT, engine("vllm"), 60, nodes=NODES[:1], again=again)
    assert head.actions == ["begin", "end", "prepare"]
