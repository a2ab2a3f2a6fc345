"""Ray's dashboard: what it answers, with the token and without."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator

import pytest
from fake_cluster import FakeCluster, Make
from free_ports import free_port

from spark_cluster.engine import ray, readiness, start
from spark_cluster.engine.ray import RayNode, RayState, parse_nodes

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


NO_ANSWERS = [
    *("", "{", "[]", "null", '{"data": null}'), NODES.replace("ALIVE", "1").replace("[", "{"),
]  # fmt: skip


@pytest.mark.parametrize("body", NO_ANSWERS)
def test_an_answer_that_is_none(body: str) -> None:
    with pytest.raises(ValueError, match="Ray's State API says: "):
        parse_nodes(body)


class Dashboard:
    """Answers who has the token.

    Attributes:
        body: of its answers.
        open: it answers everyone.
        asked: the token of each request; empty without one.
    """

    def __init__(self) -> None:
        self.body, self.open, self.asked = NODES, False, list[str]()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.headers.get("Authorization", "").removeprefix("Bearer "))
                known = outer.open or outer.asked[-1] == "5eed"
                self.send_response(200 if known else 401)
                self.end_headers()
                self.wfile.write(outer.body.encode() if known else b"Unauthorized")

            def log_message(self, *_args: object) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.http.server_port
        threading.Thread(target=self.http.serve_forever, args=(0.02,), daemon=True).start()


@pytest.fixture
def dashboard() -> Iterator[Dashboard]:
    made = Dashboard()
    yield made
    made.http.shutdown()
    made.http.server_close()


@pytest.fixture(scope="module")
def cluster(lasting_cluster: Make) -> FakeCluster:
    """Two nodes of which the first has a token for Ray."""
    made = lasting_cluster("spark1", "spark2")
    made.head.put(ray.TOKEN_FILE, "5eed\n")
    return made


@pytest.mark.parametrize("body", NO_ANSWERS)
def test_an_answer_that_is_none_has_no_nodes(
    dashboard: Dashboard, cluster: FakeCluster, body: str
) -> None:
    dashboard.body = body
    assert RayState(cluster.play.session(cluster.play.head), dashboard.port).nodes() == []


def test_the_token_is_read_on_the_node(dashboard: Dashboard, cluster: FakeCluster) -> None:
    head, worker = map(cluster.play.session, cluster.play.nodes)
    state = RayState(head, dashboard.port)
    assert [node.address for node in state.nodes()] == ["192.168.177.11", "192.168.177.13"]
    assert state.open_to_anyone() is False
    assert RayState(worker, dashboard.port).nodes() == [], "it has no token"


def test_a_new_cluster_gets_a_token_of_its_own(cluster: FakeCluster) -> None:
    head, worker = map(cluster.play.session, cluster.play.nodes)
    made = {start.token(worker) for _ in range(3)}
    assert len(made) == 3
    assert all(len(bytes.fromhex(token)) == 32 for token in made)
    assert start.token(head) == "5eed"


@pytest.mark.parametrize(("status", "warned"), [(200, True), (401, False), (0, False)])
def test_a_ray_that_asks_no_one_is_reported(
    dashboard: Dashboard, cluster: FakeCluster, status: int, warned: bool
) -> None:
    """Seen in its answer to a request without a token, not concluded from a version."""
    dashboard.open, told = status == 200, len(cluster.notes)
    readiness.ray_asks_for_its_token(cluster.play, dashboard.port if status else free_port())
    assert dashboard.asked == ([""] if status else [])
    said = cluster.notes[told:]
    assert bool(said) is warned
    assert all("2.52" in text for text in said)
