"""Ray's dashboard: what it answers, with the token and without."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from factories import put

from spark_cluster.engine import ray, readiness, start
from spark_cluster.engine.ray import RayNode, RayState, parse_nodes
from spark_cluster.node.http import ask
from spark_cluster.runner.session import Answer

ROWS = [
    {"node_ip": "192.168.177.11", "is_head_node": True, "state": "ALIVE",
     "resources_total": {"GPU": 1.0, "CPU": 20.0}},
    {"node_ip": "192.168.177.12", "is_head_node": False, "state": "DEAD", "resources_total": {}},
    {"node_ip": "192.168.177.13", "is_head_node": False, "state": "ALIVE",
     "resources_total": None},
]  # fmt: skip
NODES = json.dumps({"result": True, "data": {"result": {"result": ROWS}}})


def test_nodes_that_are_alive() -> None:
    assert parse_nodes(NODES) == [
        RayNode("192.168.177.11", True, 1.0),
        RayNode("192.168.177.13", False, 0.0),
    ]


@pytest.mark.parametrize(
    "body", ["", "{", "[]", "null", '{"data": null}', NODES.replace("ALIVE", "1").replace("[", "{")]
)
def test_an_answer_that_is_none(body: str) -> None:
    with pytest.raises(ValueError, match="Ray's State API says: "):
        parse_nodes(body)
    silent = SimpleNamespace(http=lambda _url, **_options: Answer(200, body))
    assert RayState(silent, 8265).nodes() == []


class Dashboard(http.server.BaseHTTPRequestHandler):
    """Answers who has the token."""

    def do_GET(self) -> None:
        known = self.headers.get("Authorization") == "Bearer 5eed"
        self.send_response(200 if known else 401)
        self.end_headers()
        self.wfile.write(NODES.encode() if known else b"Unauthorized")

    def log_message(self, *_args: object) -> None:
        pass


class Head:
    """A session whose node is a folder of this machine."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def http(self, url: str, *, bearer_file: str, **options: object) -> Answer:
        place = f"{self.root}{bearer_file}" if bearer_file else ""
        reply = ask({"url": url, "bearer_file": place, **options})
        return Answer(reply["status"], reply["body"], reply.get("reason", ""))


@pytest.fixture
def dashboard() -> Iterator[int]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Dashboard) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.server_port
        server.shutdown()


def test_the_token_is_read_on_the_node(dashboard: int, tmp_path: Path) -> None:
    token = put(tmp_path / ray.TOKEN_FILE.lstrip("/"), "5eed\n")
    state = RayState(Head(tmp_path), dashboard)
    assert [node.address for node in state.nodes()] == ["192.168.177.11", "192.168.177.13"]
    assert state.open_to_anyone() is False
    token.unlink()
    assert state.nodes() == []


def test_a_new_cluster_gets_a_token_of_its_own() -> None:
    class Node:
        def __init__(self, kept: str | None) -> None:
            self.kept = kept

        def request(self, op: str, **asked: object) -> object:
            assert (op, asked) == ("gather", {"files": {"token": ray.TOKEN_FILE}})
            return {"files": {"token": self.kept}}

    made = {start.token(Node(None)) for _ in range(3)}
    assert len(made) == 3
    assert all(len(bytes.fromhex(token)) == 32 for token in made)
    assert start.token(Node("5eed")) == "5eed"


@pytest.mark.parametrize(("status", "warned"), [(200, True), (401, False), (0, False)])
def test_a_ray_that_asks_no_one_is_reported(status: int, warned: bool) -> None:
    """Seen in its answer to a request without a token, not concluded from a version."""
    asked: list[str] = []
    said: list[str] = []

    def http(url: str, *, bearer_file: str, **_options: object) -> Answer:
        asked.append(bearer_file)
        return Answer(status, "")

    play = SimpleNamespace(
        head="spark1",
        session=lambda _node: SimpleNamespace(http=http),
        note=lambda text, **_options: said.append(text),
    )
    readiness.ray_asks_for_its_token(play, 8265)  # type: ignore[arg-type]
    assert asked == [""]
    assert bool(said) is warned
    assert all("2.52" in text for text in said)
