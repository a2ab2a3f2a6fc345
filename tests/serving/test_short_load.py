"""The short load after a start: real requests to a server of this machine, readings meanwhile."""

from __future__ import annotations

import contextlib
import http.server
import json
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from factories import make_node, make_recipe
from serve_plans import plan_for

from spark_cluster.errors import VerificationFailed
from spark_cluster.node.http import ask
from spark_cluster.runner.events import Bus, MemoryHeld
from spark_cluster.runner.parallel import in_parallel
from spark_cluster.runner.session import Answer
from spark_cluster.serving import short_load
from spark_cluster.serving.endpoint import Endpoint
from spark_cluster.serving.memory_phases import MemoryPhases
from spark_cluster.serving.result import Served


class Server(http.server.ThreadingHTTPServer):
    """Answers chat completions; keeps the most requests that it had at a time."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.running = self.most = self.answered = 0
        self.status, self.healthy = 200, True
        self.together = threading.Barrier(short_load.AT_ONCE)


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        self._answer(200 if self.server.healthy else 503, {})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert (asked["model"], asked["max_tokens"]) == ("m", short_load.MAX_TOKENS)
        with self.server.lock:
            self.server.running += 1
            self.server.most = max(self.server.most, self.server.running)
        with contextlib.suppress(threading.BrokenBarrierError):
            self.server.together.wait(20)
        with self.server.lock:
            self.server.running -= 1
            self.server.answered += 1
        answer = {"choices": [{"message": {"content": "A lamp."}}]}
        refusal = {"error": {"message": "no more room"}}
        self._answer(self.server.status, answer if self.server.status == 200 else refusal)

    def _answer(self, status: int, body: object) -> None:
        with contextlib.suppress(ConnectionError):  # the answer was not awaited
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

    def log_message(self, *_args: object) -> None:
        pass


class Head:
    """A session whose node is this machine; its process holds more with each question."""

    def __init__(self) -> None:
        self.used = 1000

    def http(self, url: str, **options: Any) -> Answer:
        reply = ask({"url": url, **options})
        return Answer(reply["status"], reply["body"], reply.get("reason", ""))

    def submit(self, *_args: object, **_options: object) -> Any:
        self.used += 24
        apps = {"status": 0, "stdout": f"7, vllm, {self.used}\n", "stderr": ""}
        files = {"meminfo": "MemTotal: 127600748 kB\nMemAvailable: 20480000 kB\n"}
        return SimpleNamespace(wait=lambda: {"commands": {"apps": apps}, "files": files})

    def run(self, _argv: object, **_options: object) -> Any:
        line = "2026-11-20T10:00:00Z RuntimeError: CUDA error: an illegal memory access\n"
        return SimpleNamespace(status=0, stdout=line, stderr="")


class Play:
    """A play as far as the load asks it."""

    def __init__(self) -> None:
        self.head, self.phases, self.notes = make_node("spark1"), MemoryPhases(), list[str]()
        self.nodes, self.one = [self.head], Head()
        self.events: list[Any] = []
        self.bus = Bus(self.phases, SimpleNamespace(take=self.events.append))  # type: ignore[arg-type]
        self.sessions = {"spark1": self.one}

    def session(self, _node: object) -> Head:
        return self.one

    def note(self, text: str, **_options: object) -> None:
        self.notes.append(text)

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        assert name == short_load.STAGE
        yield

    def together(self, *jobs: Any) -> list[Any]:
        found = list(in_parallel({str(i): job for i, job in enumerate(jobs)}).values())
        for one in found:
            if isinstance(one, Exception):
                raise one
        return found


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setattr(short_load, "LASTS_S", 0.1)
    monkeypatch.setattr(short_load, "EVERY_S", 0.01)
    with Server() as one:
        threading.Thread(target=one.serve_forever, args=(0.01,), daemon=True).start()
        yield one
        one.shutdown()


def loaded(play: Any, server: Server) -> Served:
    plan = plan_for(make_recipe(), play.head)
    object.__setattr__(plan, "endpoint", Endpoint("127.0.0.1", server.server_port, "m"))
    return short_load.under_load(play, plan, Served(plan, "Paris", [], [], []))


def test_requests_run_at_once_and_the_largest_reading_is_kept(server: Server) -> None:
    play = Play()
    result = loaded(play, server)
    assert server.most == short_load.AT_ONCE
    assert server.answered >= short_load.AT_ONCE
    held = [e.used_mib for e in play.events if isinstance(e, MemoryHeld)]
    assert held == sorted(held)
    assert result.under_load[0].used_mib == held[-1] == play.phases.nodes["spark1"].under_load
    assert result.to_dict()["vram"]["under_load"][0]["used_mib"] == held[-1]
    assert play.notes == []


def test_a_server_that_refuses_is_said_and_serves(server: Server) -> None:
    server.status, play = 500, Play()
    loaded(play, server)
    assert server.answered == short_load.AT_ONCE, "no one asks again"
    (said,) = play.notes
    assert said.startswith("4 of 4 requests of a short load were not answered: no more room")


def test_a_server_that_ends_under_load_is_no_success(server: Server) -> None:
    server.status, server.healthy = 500, False
    with pytest.raises(VerificationFailed, match="ended under 4 requests at once") as caught:
        loaded(Play(), server)
    assert "illegal memory access" in caught.value.message


def test_an_answer_that_takes_long_is_cut_off(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a load all the same, and nothing to complain of."""
    monkeypatch.setattr(short_load, "LIMIT_S", 0.3)
    server.together = threading.Barrier(short_load.AT_ONCE + 1)  # one more than ever comes
    play, began = Play(), time.monotonic()
    result = loaded(play, server)
    assert time.monotonic() - began < 15
    assert (play.notes, result.under_load[0].used_mib > 1000) == ([], True)
    server.together.abort()
