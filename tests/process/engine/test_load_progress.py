"""The time limit of a start by what its containers say and do, and the short load after it."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from cases import cases
from chat_server import ChatServer
from factories import make_recipe, put
from health_server import HealthServer
from piped_cluster import Make, PipedCluster
from serve_plans import bare_server, deployment_for, served_by

from spark_cluster.config.facts import GpuProcess
from spark_cluster.config.folders import CACHE_ROOT
from spark_cluster.engine import readiness, ready
from spark_cluster.engine.names import SERVER
from spark_cluster.engine.result import Served
from spark_cluster.errors import VerificationFailed
from spark_cluster.runner.events import MemoryHeld

LIMIT_S = 0.2
Works = Callable[[int], object]


class Start:
    """A start on one node, which `up` waits for.

    Attributes:
        processes: what `docker top` prints.
        cache: the folder of its image's caches.
    """

    def __init__(self, cluster: PipedCluster, health: HealthServer) -> None:
        self.cluster, self.node, self.health = cluster, cluster.head, health
        self.node.run_container(SERVER)
        self.node.log(SERVER, "NCCL INFO Connected all rings\n")
        self.processes, docker = "PID TIME COMMAND\n7 9 python3\n", self.node.programs["docker"]
        self.node.programs["docker"] = lambda words, stdin: (
            self.processes if words[0] == "top" else docker(words, stdin)
        )
        self.cache = self.node.root / CACHE_ROOT.lstrip("/") / "images" / ("1" * 12)

    def wait(self, works: Works = lambda _look: None, *, serves: bool = True) -> list[str]:
        """Wait for it, and return the notes.

        Args:
            works: is called at each look, with its number.
            serves: whether it serves after a note that it is at work.
        """
        play = self.cluster.play

        def asked() -> None:
            works(len(self.health.asked))
            self.health.status = 200 if serves and self.cluster.notes else 503

        self.health.when_asked = asked
        how: dict[str, Any] = {"executor": "mp", "ready_timeout_s": LIMIT_S}
        readiness.healthy(play, bare_server(*play.nodes, port=self.health.server_port, **how))
        return self.cluster.notes


@pytest.fixture
def start(piped_cluster: Make, no_pauses: None) -> Iterator[Start]:
    with HealthServer(status=503) as health:
        yield Start(piped_cluster("spark1"), health)


@pytest.fixture
def for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """What works is waited for as long as this machine may need."""
    monkeypatch.setattr(readiness, "LONGEST", 10_000)


@pytest.mark.usefixtures("for_long")
def test_a_silent_server_whose_cache_grows_is_waited_for(start):
    """P12: no line of log for 36 minutes while kernels are compiled; it serves after that."""
    (note,) = start.wait(lambda look: put(start.cache / f"triton/{look}.cubin", "x" * 4096))
    assert "not healthy after 0.2 s (ready_timeout_s), but at work: compiled code on spark1" in note


def test_a_silent_and_idle_server_is_not_waited_for(start):
    """P12: what says nothing and does nothing has failed, and the reason is what was looked at."""
    put(start.cache / "triton/old.cubin", "x")
    with pytest.raises(VerificationFailed) as caught:
        start.wait()
    assert "nothing has moved for" in caught.value.message
    assert caught.value.message.endswith("its log ends with: NCCL INFO Connected all rings")
    assert not start.cluster.notes


@pytest.mark.usefixtures("for_long")
@pytest.mark.parametrize("case", cases(__file__, "logs.toml")["work"], ids=lambda one: one["text"])
def test_what_counts_as_work(start, case):
    """P12: compilers and lines about work do; a busy engine may wait for a peer that is gone."""

    def works(look: int) -> None:
        text = case["text"].format(look)
        if case["where"] == "log":
            start.node.log(SERVER, text)
        else:
            start.processes = text

    if "told" in case:
        assert case["told"] in start.wait(works)[0]
    else:
        with pytest.raises(VerificationFailed, match="nothing has moved"):
            start.wait(works)


def test_a_container_that_pretends_to_work_for_ever(start):
    """P12: it is waited for three times the limit at most."""
    with pytest.raises(VerificationFailed, match="3 times its limit, though something still moves"):
        start.wait(lambda look: put(start.cache / f"triton/{look}", "x"), serves=False)
    assert len(start.cluster.notes) == 1, "it is told once"


def test_links_of_a_container_are_not_followed(start, tmp_path):
    """P12: a folder of the node that others write is no work of this server."""
    start.cache.parent.mkdir(parents=True)
    start.cache.symlink_to(tmp_path)
    with pytest.raises(VerificationFailed, match="nothing has moved"):
        start.wait(lambda look: put(tmp_path / f"other/{look}", "x"))


# --- the short load after a start: real requests to a server of this machine, readings meanwhile -


class Loaded:
    """A node with a server, whose process holds more with each reading.

    An answer waits until all requests are there, and until the GPU's memory was read.
    """

    def __init__(self, cluster: PipedCluster, server: ChatServer) -> None:
        self.cluster, self.server, self.used, self.fails = cluster, server, 1000, False
        self.together, self.read = threading.Barrier(ready.AT_ONCE), threading.Event()
        cluster.head.run_container(SERVER)
        cluster.head.when_read = self._hold_more
        made = deployment_for(make_recipe(), cluster.play.head)
        self.deployment = replace(made, endpoint=server.endpoint)
        server.refuse = self._answer

    def _hold_more(self) -> None:
        self.used += 24
        self.cluster.head.held = [GpuProcess(7, "vllm", self.used)]
        self.read.set()

    def _answer(self, asked: dict[str, Any]) -> tuple[int, str] | None:
        assert asked["max_tokens"] == ready.MAX_TOKENS
        with contextlib.suppress(threading.BrokenBarrierError):
            self.together.wait(20)
        self.read.wait(20)
        return (500, "no more room") if self.fails else None

    def __call__(self) -> Served:
        return ready.under_load(self.cluster.play, served_by(self.deployment))

    @property
    def answers(self) -> str:
        """What the user is told before the load."""
        return f"{self.deployment.endpoint.url} answers: Paris"


@pytest.fixture
def load(piped_cluster: Make, server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    monkeypatch.setattr(ready, "LASTS_S", 0.1)
    return Loaded(piped_cluster("spark1"), server)


def test_requests_run_at_once_and_the_largest_reading_is_kept(load):
    result = load()
    assert not load.together.broken, "all of them were there at the same time"
    assert load.cluster.stages == [ready.STAGE]
    held = [e.used_mib for e in load.cluster.events if isinstance(e, MemoryHeld)]
    assert held == sorted(held)
    assert result.under_load[0].used_mib == held[-1] > 1000
    assert result.to_dict()["vram"]["under_load"][0]["used_mib"] == held[-1]
    assert load.cluster.notes == [load.answers]


def test_a_server_that_refuses_is_said_and_serves(load):
    load.fails = True
    load()
    assert len(load.server.asked) == ready.AT_ONCE, "no one asks again"
    answers, said = load.cluster.notes
    assert answers == load.answers
    assert said.startswith("4 of 4 requests of a short load were not answered: no more room")


def test_a_server_that_ends_under_load_is_no_success(load):
    load.fails, load.server.health = True, 503
    line = "2026-11-20T10:00:00Z RuntimeError: CUDA error: an illegal memory access\n"
    load.cluster.head.log(SERVER, line)
    with pytest.raises(VerificationFailed, match="ended under 4 requests at once") as caught:
        load()
    assert "illegal memory access" in caught.value.message


def test_an_answer_that_takes_long_is_cut_off(load, monkeypatch):
    """It is a load all the same, and nothing to complain of."""
    monkeypatch.setattr(ready, "LIMIT_S", 1.0)  # two readings
    load.together = threading.Barrier(ready.AT_ONCE + 1)  # one more than ever comes
    began = time.monotonic()
    result = load()
    assert time.monotonic() - began < 15
    assert load.cluster.notes == [load.answers]
    assert result.under_load[0].used_mib > 1000
    load.together.abort()
