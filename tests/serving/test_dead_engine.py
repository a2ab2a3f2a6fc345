"""Whether an engine whose completion failed is dead, or its server only busy."""

from __future__ import annotations

import json
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from chat_server import ChatServer, Node
from factories import make_recipe

from spark_cluster.inference.engine import engine as engine_named
from spark_cluster.inference.process import SERVER
from spark_cluster.node.containers import ContainerState
from spark_cluster.serving import dead_engine
from spark_cluster.serving.endpoint import Endpoint

ERROR = json.dumps({"error": {"message": "EngineCore encountered an issue.", "code": 500}})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    for name, seconds in (("LOOKS_S", 1.0), ("EVERY_S", 0.05), ("ANSWER_S", 0.3)):
        monkeypatch.setattr(dead_engine, name, seconds)
    made = ChatServer()
    yield made
    made.close()


def is_dead(endpoint: Endpoint, *states: tuple[str, str, int]) -> bool:
    """Ask about a server with a rank on spark2.

    Args:
        states: node, status and restarts of a program; others run. Of each node the first is what
            it is at the beginning, and the last stays.
    """
    left: dict[str, list[ContainerState]] = {}
    for node, status, restarts in states:
        left.setdefault(node, []).append(ContainerState(status, restarts=restarts))

    def state(_play: Any, name: str, node: str) -> ContainerState:
        assert name == SERVER
        known = left.get(node, [ContainerState()])
        return known.pop(0) if len(known) > 1 else known[0]

    play = SimpleNamespace(head=SimpleNamespace(name="spark1"), session=lambda _node: Node())
    plan = SimpleNamespace(
        engine=engine_named("vllm"), endpoint=endpoint, server=SERVER, ranks=("spark2",),
        recipe=make_recipe(),
    )  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dead_engine, "container_state", state)
        return dead_engine.is_dead(play, plan)  # type: ignore[arg-type]


def test_one_that_answers_now_lives(server: ChatServer) -> None:
    assert not is_dead(server.endpoint)
    assert len(server.asked) == 1


@pytest.mark.parametrize("status", [429, 503, 504])
def test_one_that_is_busy_lives(server: ChatServer, status: int) -> None:
    server.raw = (status, "{}")
    assert not is_dead(server.endpoint)


def test_one_that_is_late_lives(server: ChatServer) -> None:
    server.delay_s = 0.5
    assert not is_dead(server.endpoint)


def test_completions_that_fail_again_and_again(server: ChatServer) -> None:
    server.raw = (500, ERROR)
    assert is_dead(server.endpoint)


def test_a_completion_that_fails_once(server: ChatServer) -> None:
    refused = iter([(500, "an accident")])
    server.refuse = lambda _request: next(refused, None)
    assert not is_dead(server.endpoint)


def test_an_api_that_has_ended() -> None:
    assert is_dead(Endpoint("127.0.0.1", 1, "m"))


def test_health_that_says_so(server: ChatServer) -> None:
    server.health = 503
    assert is_dead(server.endpoint)
    assert server.asked == []


@pytest.mark.parametrize("node", ["spark1", "spark2"])
@pytest.mark.parametrize("after", [("exited", 0), ("restarting", 0), ("running", 1)])
def test_a_program_that_ends_or_is_restarted(
    server: ChatServer, node: str, after: tuple[str, int]
) -> None:
    server.raw = (503, "{}")
    assert is_dead(server.endpoint, (node, "running", 0), (node, *after))
