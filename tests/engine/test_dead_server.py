"""A server whose engine has died while its API still answers: `up` ends it and starts it again."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from chat_server import ChatServer, Node
from factories import PREPARED, make_node

from spark_cluster.engine import start
from spark_cluster.engine.endpoint import Endpoint
from spark_cluster.engine.engine import engine as engine_named
from spark_cluster.engine.names import SERVER
from spark_cluster.runner.options import Options, Selection


class FakePlay:
    check = False

    def __init__(self, selection: Selection) -> None:
        self.options = Options(selection=selection)
        self.notes: list[str] = []
        self.prepared: list[tuple[str, int]] = []
        self.absent: list[tuple[str, str, str]] = []

    def session(self, node: Any) -> Node:
        made: Any = Node()
        made.submit = partial(self.prepare, node.name)
        return made

    def prepare(self, name: str, op: str, _limit: float, *, what: str) -> Any:
        assert (op, what) == ("load_guard", "prepare")
        self.prepared.append((name, len(self.absent)))
        return SimpleNamespace(wait=lambda: PREPARED)

    def note(self, text: str) -> None:
        self.notes.append(text)

    def apply(self, nodes: Any, resources: Any) -> None:
        self.absent += [(node.name, one.name, one.state) for node in nodes for one in resources]


@pytest.fixture
def server() -> Iterator[ChatServer]:
    made = ChatServer()
    yield made
    made.close()


def ended(endpoint: Endpoint, engine: str = "vllm", selection: Selection | None = None) -> FakePlay:
    play = FakePlay(selection or Selection())
    plan = SimpleNamespace(
        engine=engine_named(engine),
        endpoint=endpoint,
        nodes=[make_node("spark1"), make_node("spark2")],
        deployment=SimpleNamespace(runtime="docker"),
        server=SERVER,
    )
    start.end_dead_server(play, plan)  # type: ignore[arg-type]
    return play


def test_a_dead_engine_is_ended_on_all_nodes(server: ChatServer) -> None:
    server.health = 503
    play = ended(server.endpoint)
    assert play.absent == [("spark1", "spark-vllm", "absent"), ("spark2", "spark-vllm", "absent")]
    assert "has died" in play.notes[0]


def test_caches_are_dropped_before_it_is_started_again(server: ChatServer) -> None:
    """P07: after its end, or it would still hold the memory."""
    server.health = 503
    assert ended(server.endpoint).prepared == [("spark1", 2), ("spark2", 2)]
    server.health = 200
    assert ended(server.endpoint).prepared == []


def test_others_are_left(server: ChatServer) -> None:
    assert ended(server.endpoint).absent == []
    server.health = 503  # of SGLang while it loads, too
    assert ended(server.endpoint, "sglang").absent == []
    without_vllm = Selection(skip_tags=frozenset({"vllm"}))
    assert ended(server.endpoint, selection=without_vllm).absent == [], "nobody starts it again"
    nothing_listens = Endpoint("127.0.0.1", 1, "m")
    assert ended(nothing_listens).absent == []


def test_the_engine_is_asked_and_not_the_proxy_before_it(server: ChatServer) -> None:
    """A proxy answers 503 while the engine loads."""
    port = server.endpoint.port
    behind = Endpoint("192.0.2.1", 443, "m", "key", engine_port=port, tls="self-signed")
    assert ended(behind).absent == []
    server.health = 503
    assert len(ended(behind).absent) == 2
