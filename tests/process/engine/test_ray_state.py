"""Ray's dashboard: what it answers, with the token and without."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from free_ports import free_port
from piped_cluster import Make, PipedCluster
from web_server import Answer, Asked, WebServer

from spark_cluster.engine import ray, readiness, start
from spark_cluster.engine.ray import RayNode, RayState

ROWS = [
    {"node_ip": "192.168.177.11", "is_head_node": True, "state": "ALIVE",
     "resources_total": {"GPU": 1.0, "CPU": 20.0}},
    {"node_ip": "192.168.177.12", "is_head_node": False, "state": "DEAD", "resources_total": {}},
    {"node_ip": "192.168.177.13", "is_head_node": False, "state": "ALIVE",
     "resources_total": None},
]  # fmt: skip
NODES = json.dumps({"result": True, "data": {"result": {"result": ROWS}}})


NO_ANSWERS = [
    *("", "{", "[]", "null", '{"data": null}'), NODES.replace("ALIVE", "1").replace("[", "{"),
]  # fmt: skip


class Dashboard(WebServer):
    """Answers who has the token.

    Attributes:
        body: of its answers.
        open: it answers everyone.
    """

    def __init__(self) -> None:
        self.body, self.open = NODES, False
        super().__init__()

    def answer(self, asked: Asked) -> Answer:
        known = self.open or asked.headers["Authorization"] == "Bearer 5eed"
        return (200, self.body) if known else (401, "Unauthorized")


@pytest.fixture
def dashboard() -> Iterator[Dashboard]:
    with Dashboard() as made:
        yield made


@pytest.fixture(scope="module")
def cluster(lasting_cluster: Make) -> PipedCluster:
    """Two nodes of which the first has a token for Ray."""
    made = lasting_cluster("spark1", "spark2")
    made.head.put(ray.TOKEN_FILE, "5eed\n")
    return made


@pytest.mark.parametrize("body", NO_ANSWERS)
def test_an_answer_that_is_none_has_no_nodes(dashboard, cluster, body):
    dashboard.body = body
    assert RayState(cluster.play.session(cluster.play.head), dashboard.server_port).nodes() == []


def test_the_token_is_read_on_the_node(dashboard: Dashboard, cluster: PipedCluster) -> None:
    head, worker = map(cluster.play.session, cluster.play.nodes)
    state = RayState(head, dashboard.server_port)
    assert state.nodes() == [
        RayNode("192.168.177.11", True, 1.0),
        RayNode("192.168.177.13", False, 0.0),
    ], "those that are alive"
    assert state.open_to_anyone() is False
    assert RayState(worker, dashboard.server_port).nodes() == [], "it has no token"


def test_a_new_cluster_gets_a_token_of_its_own(cluster: PipedCluster) -> None:
    head, worker = map(cluster.play.session, cluster.play.nodes)
    made = {start.token(worker) for _ in range(3)}
    assert len(made) == 3
    assert all(len(bytes.fromhex(token)) == 32 for token in made)
    assert start.token(head) == "5eed"


@pytest.mark.parametrize(("status", "warned"), [(200, True), (401, False), (0, False)])
def test_a_ray_that_asks_no_one_is_reported(dashboard, cluster, status, warned):
    """Seen in its answer to a request without a token, not concluded from a version."""
    dashboard.open, told = status == 200, len(cluster.notes)
    readiness.ray_asks_for_its_token(cluster.play, dashboard.server_port if status else free_port())
    assert [asked.headers["Authorization"] for asked in dashboard.asked] == [None] * bool(status)
    said = cluster.notes[told:]
    assert bool(said) is warned
    assert all("2.52" in text for text in said)
