"""`up` as a whole, over two nodes whose containers are started by a fake Docker and whose engine is
a server of this machine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from chat_server import ChatServer, Reply
from factories import make_recipe
from fake_cluster import FakeCluster, FakeNode, Make
from fake_programs import Said
from free_ports import BESIDE_RAY, free_port
from serve_plans import own_programs

from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_schema import Readiness
from spark_cluster.engine.names import SERVER
from spark_cluster.engine.resolve import resolve
from spark_cluster.errors import VerificationFailed
from spark_cluster.runner.events import Result

ROLES = ("network", "firewall", "containers", "caches", "start_limit", "models", "ray", "endpoint")
ERROR = json.dumps({"error": {"message": "EngineCore encountered an issue.", "code": 500}})


def recipe() -> Recipe:
    """A recipe without Ray, whose model is on the nodes."""
    made = make_recipe(readiness=Readiness(rungs=["answer"]))
    model = made.model.model_copy(update={"path": "/srv/models/m"})
    return made.model_copy(update={"model": model})


class Up:
    """Two nodes that have all that a recipe needs, and its engine."""

    def __init__(self, make: Make) -> None:
        self.engine = ChatServer(free_port(*BESIDE_RAY))
        port = self.engine.http.server_port
        serve = f"serve: {{bind: loopback, port: {port}}}\n"
        self.cluster: FakeCluster = make("spark1", "spark2", more=serve)
        self.cluster.marked(*ROLES)
        own_programs(self.cluster.project, "vllm")
        for node in self.cluster.nodes.values():
            node.put("/srv/models/m/.complete")
            node.have_image(recipe().image.ref)

    def __call__(self) -> Any:
        play = self.cluster.play
        deployment = resolve(recipe(), play.inventory, play.nodes, 2)
        return play.project.load_playbook("up").function(play, deployment=deployment, load=False)

    def starts(self) -> list[int]:
        """How often each node's server was started."""
        nodes = self.cluster.nodes.values()
        return [sum(words[0] == "run" for words in node.calls("docker")) for node in nodes]

    def works_when_started(self, node: FakeNode) -> None:
        """Have the engine be well again when its container is started on this node."""
        docker = node.programs["docker"]

        def starting(words: list[str], stdin: str) -> Said | str:
            if words[0] == "run":
                self.engine.raw = None
            return docker(words, stdin)

        node.programs["docker"] = starting


@pytest.fixture
def up(fake_cluster: Make) -> Iterator[Up]:
    made = Up(fake_cluster)
    yield made
    made.engine.close()


def test_it_serves_and_a_second_run_changes_nothing(up: Up) -> None:
    found = up()
    assert "paris" in found.answer.lower()
    assert up.cluster.stages == ["prepare", "fetch", "start", "load", "verify"]
    assert up.cluster.containers == {"spark1": [SERVER], "spark2": [SERVER]}
    made = up.cluster.settings("ray").server
    assert made.node_names == ("spark1", "spark2")
    up.cluster.events.clear()
    assert up().answer == found.answer
    results = [event for event in up.cluster.events if isinstance(event, Result)]
    assert {event.verdict for event in results} == {"ok"}
    assert up.starts() == [1, 1]


def test_a_server_that_ran_already_and_whose_engine_is_dead_is_started_again_once(up: Up) -> None:
    """Its API says that it is healthy for a moment after a worker was killed (executor mp)."""
    up()
    up.engine.raw = (500, ERROR)
    up.works_when_started(up.cluster.nodes["spark2"])
    assert "paris" in up().answer.lower()
    assert up.starts() == [2, 2]
    (note,) = [note for note in up.cluster.notes if "the running server fails" in note]
    assert "a completion is not (status 500)" in note
    assert note.endswith("starting it again")


def test_one_that_was_started_now_is_not_started_again(up: Up) -> None:
    up.engine.raw = (500, ERROR)
    with pytest.raises(VerificationFailed, match=r"a completion is not \(status 500\)"):
        up()
    assert up.starts() == [1, 1]


def test_one_that_answers_wrongly_is_left(up: Up) -> None:
    up()
    up.engine.change = lambda _request, _reply: Reply("the the the")
    with pytest.raises(VerificationFailed, match="the model says 'the the the'"):
        up()
    assert up.starts() == [1, 1]
