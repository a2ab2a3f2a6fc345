"""The short load after a start: real requests to a server of this machine, readings meanwhile."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import replace
from typing import Any

import pytest
from chat_server import ChatServer
from factories import make_recipe
from fake_cluster import FakeCluster, Make
from serve_plans import deployment_for, served_by

from spark_cluster.config.facts import GpuProcess
from spark_cluster.engine import ready
from spark_cluster.engine.names import SERVER
from spark_cluster.engine.result import Served
from spark_cluster.errors import VerificationFailed
from spark_cluster.runner.events import MemoryHeld


class Loaded:
    """A node with a server, whose process holds more with each reading.

    An answer waits until all requests are there, and until the GPU's memory was read.
    """

    def __init__(self, cluster: FakeCluster, server: ChatServer) -> None:
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
def load(fake_cluster: Make, server: ChatServer, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    monkeypatch.setattr(ready, "LASTS_S", 0.1)
    return Loaded(fake_cluster("spark1"), server)


def test_requests_run_at_once_and_the_largest_reading_is_kept(load: Loaded) -> None:
    result = load()
    assert not load.together.broken, "all of them were there at the same time"
    assert load.cluster.stages == [ready.STAGE]
    held = [e.used_mib for e in load.cluster.events if isinstance(e, MemoryHeld)]
    assert held == sorted(held)
    assert result.under_load[0].used_mib == held[-1] > 1000
    assert result.to_dict()["vram"]["under_load"][0]["used_mib"] == held[-1]
    assert load.cluster.notes == [load.answers]


def test_a_server_that_refuses_is_said_and_serves(load: Loaded) -> None:
    load.fails = True
    load()
    assert len(load.server.asked) == ready.AT_ONCE, "no one asks again"
    answers, said = load.cluster.notes
    assert answers == load.answers
    assert said.startswith("4 of 4 requests of a short load were not answered: no more room")


def test_a_server_that_ends_under_load_is_no_success(load: Loaded) -> None:
    load.fails, load.server.health = True, 503
    line = "2026-11-20T10:00:00Z RuntimeError: CUDA error: an illegal memory access\n"
    load.cluster.head.log(SERVER, line)
    with pytest.raises(VerificationFailed, match="ended under 4 requests at once") as caught:
        load()
    assert "illegal memory access" in caught.value.message


def test_an_answer_that_takes_long_is_cut_off(
    load: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a load all the same, and nothing to complain of."""
    monkeypatch.setattr(ready, "LIMIT_S", 1.0)  # two readings
    load.together = threading.Barrier(ready.AT_ONCE + 1)  # one more than ever comes
    began = time.monotonic()
    result = load()
    assert time.monotonic() - began < 15
    assert load.cluster.notes == [load.answers]
    assert result.under_load[0].used_mib > 1000
    load.together.abort()
