"""The short load after a start: real requests to a server of this machine, readings meanwhile."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from factories import make_recipe
from fake_cluster import FakeCluster, Make
from serve_plans import deployment_for, served_by
from web_server import Answer, Asked, WebServer

from spark_cluster.config.facts import GpuProcess
from spark_cluster.engine import ready
from spark_cluster.engine.deployment import Endpoint
from spark_cluster.engine.names import SERVER
from spark_cluster.engine.result import Served
from spark_cluster.errors import VerificationFailed
from spark_cluster.runner.events import MemoryHeld


class Server(WebServer):
    """Answers chat completions; keeps the most requests that it had at a time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.running = self.most = self.answered = 0
        self.status, self.healthy = 200, True
        self.together = threading.Barrier(ready.AT_ONCE)
        self.read = threading.Event()
        """Set when the GPU's memory was read: the answers wait for it."""
        super().__init__()

    def answer(self, asked: Asked) -> Answer:
        if asked.method == "GET":
            return 200 if self.healthy else 503, {}
        document = asked.document
        assert (document["model"], document["max_tokens"]) == ("m", ready.MAX_TOKENS)
        with self.lock:
            self.running += 1
            self.most = max(self.most, self.running)
        with contextlib.suppress(threading.BrokenBarrierError):
            self.together.wait(20)
        self.read.wait(20)
        with self.lock:
            self.running -= 1
            self.answered += 1
        if self.status != 200:
            return self.status, {"error": {"message": "no more room"}}
        return 200, {"choices": [{"message": {"content": "A lamp."}}]}


class Loaded:
    """A node with the server, whose process holds more with each reading."""

    def __init__(self, cluster: FakeCluster, server: Server) -> None:
        self.cluster, self.server = cluster, server
        cluster.head.run_container(SERVER)
        cluster.head.when_read = self._hold_more
        self.used = 1000
        self.deployment = replace(
            deployment_for(make_recipe(), cluster.play.head),
            endpoint=Endpoint("127.0.0.1", server.server_port, "m"),
        )

    def _hold_more(self) -> None:
        self.used += 24
        self.cluster.head.held = [GpuProcess(7, "vllm", self.used)]
        self.server.read.set()

    def __call__(self) -> Served:
        return ready.under_load(self.cluster.play, served_by(self.deployment))

    @property
    def answers(self) -> str:
        """What the user is told before the load."""
        return f"{self.deployment.endpoint.url} answers: Paris"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(ready, "LASTS_S", 0.1)
    with Server() as one:
        yield one


@pytest.fixture
def load(fake_cluster: Make, server: Server) -> Loaded:
    return Loaded(fake_cluster("spark1"), server)


def test_requests_run_at_once_and_the_largest_reading_is_kept(load: Loaded, server: Server) -> None:
    result = load()
    assert server.most == ready.AT_ONCE
    assert server.answered >= ready.AT_ONCE
    assert load.cluster.stages == [ready.STAGE]
    held = [e.used_mib for e in load.cluster.events if isinstance(e, MemoryHeld)]
    assert held == sorted(held)
    assert result.under_load[0].used_mib == held[-1] > 1000
    assert result.to_dict()["vram"]["under_load"][0]["used_mib"] == held[-1]
    assert load.cluster.notes == [load.answers]


def test_a_server_that_refuses_is_said_and_serves(load: Loaded, server: Server) -> None:
    server.status = 500
    load()
    assert server.answered == ready.AT_ONCE, "no one asks again"
    answers, said = load.cluster.notes
    assert answers == load.answers
    assert said.startswith("4 of 4 requests of a short load were not answered: no more room")


def test_a_server_that_ends_under_load_is_no_success(load: Loaded, server: Server) -> None:
    server.status, server.healthy = 500, False
    line = "2026-11-20T10:00:00Z RuntimeError: CUDA error: an illegal memory access\n"
    load.cluster.head.log(SERVER, line)
    with pytest.raises(VerificationFailed, match="ended under 4 requests at once") as caught:
        load()
    assert "illegal memory access" in caught.value.message


def test_an_answer_that_takes_long_is_cut_off(
    load: Loaded, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a load all the same, and nothing to complain of."""
    monkeypatch.setattr(ready, "LIMIT_S", 1.0)  # two readings
    server.together = threading.Barrier(ready.AT_ONCE + 1)  # one more than ever comes
    began = time.monotonic()
    result = load()
    assert time.monotonic() - began < 15
    assert load.cluster.notes == [load.answers]
    assert result.under_load[0].used_mib > 1000
    server.together.abort()
