"""Whether an engine whose completion failed is dead, or its server only busy."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from chat_server import ChatServer
from factories import make_recipe
from fake_cluster import FakeNode, Make
from fake_programs import Said
from serve_plans import server_for

from spark_cluster.engine import ready
from spark_cluster.engine.deployment import Endpoint
from spark_cluster.engine.names import SERVER

ERROR = json.dumps({"error": {"message": "EngineCore encountered an issue.", "code": 500}})


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ChatServer]:
    monkeypatch.setattr(ready, "EVERY_S", 0.05)
    made = ChatServer()
    yield made
    made.close()


@pytest.fixture
def briefly(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that shows no sign is not looked at for long."""
    for name, seconds in (("LOOKS_S", 1.0), ("ALIVE_S", 0.3)):
        monkeypatch.setattr(ready, name, seconds)


@pytest.fixture
def is_dead(fake_cluster: Make) -> Callable[..., bool]:
    """`is_dead(endpoint, node, after)`: ask about a server with a rank on spark2, whose program on
    a node is in this state from the second look on; without one, all run."""

    def ask(endpoint: Endpoint, name: str = "", **after: Any) -> bool:
        cluster = fake_cluster()
        for node in cluster.nodes.values():
            node.run_container(SERVER)
        if name:
            ends_at_the_second_look(cluster.nodes[name], **after)
        plan = server_for(make_recipe(), *cluster.play.nodes)
        assert plan.ranks == ("spark2",)
        return ready.is_dead(cluster.play, replace(plan, endpoint=endpoint))

    return ask


def ends_at_the_second_look(node: FakeNode, **after: Any) -> None:
    docker, looks = node.programs["docker"], iter(range(1000))

    def looking(words: list[str], stdin: str) -> Said | str:
        if words[:2] == ["container", "inspect"] and next(looks) == 1:
            node.run_container(SERVER, **after)
        return docker(words, stdin)

    node.programs["docker"] = looking


def test_one_that_answers_now_lives(server: ChatServer, is_dead: Any) -> None:
    assert not is_dead(server.endpoint)
    assert len(server.asked) == 1


@pytest.mark.usefixtures("briefly")
@pytest.mark.parametrize("status", [429, 503, 504])
def test_one_that_is_busy_lives(server: ChatServer, is_dead: Any, status: int) -> None:
    server.raw = (status, "{}")
    assert not is_dead(server.endpoint)


@pytest.mark.usefixtures("briefly")
def test_one_that_is_late_lives(server: ChatServer, is_dead: Any) -> None:
    server.delay_s = 0.5
    assert not is_dead(server.endpoint)


def test_completions_that_fail_again_and_again(server: ChatServer, is_dead: Any) -> None:
    server.raw = (500, ERROR)
    assert is_dead(server.endpoint)


def test_a_completion_that_fails_once(server: ChatServer, is_dead: Any) -> None:
    refused = iter([(500, "an accident")])
    server.refuse = lambda _request: next(refused, None)
    assert not is_dead(server.endpoint)


def test_an_api_that_has_ended(is_dead: Any) -> None:
    assert is_dead(Endpoint("127.0.0.1", 1, "m"))


def test_health_that_says_so(server: ChatServer, is_dead: Any) -> None:
    server.health = 503
    assert is_dead(server.endpoint)
    assert server.asked == []


@pytest.mark.parametrize("node", ["spark1", "spark2"])
@pytest.mark.parametrize("after", [{"status": "exited"}, {"status": "restarting"}, {"restarts": 1}])
def test_a_program_that_ends_or_is_restarted(
    server: ChatServer, is_dead: Any, node: str, after: dict[str, Any]
) -> None:
    server.raw = (503, "{}")
    assert is_dead(server.endpoint, node, **after)
