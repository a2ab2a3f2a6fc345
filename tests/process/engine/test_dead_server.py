"""A server whose engine has died while its API still answers, and one that is only busy."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from cases import cases
from factories import make_recipe
from fake_programs import Said
from piped_cluster import Make, PipedCluster, PipedNode
from serve_plans import located, server_for, starting

from spark_cluster.engine import ready, start
from spark_cluster.engine.deployment import Endpoint
from spark_cluster.engine.names import SERVER
from spark_cluster.engine.resolve import resolve
from spark_cluster.runner.events import Options, Selection

DROPPED = "/proc/sys/vm/drop_caches"


@pytest.fixture
def ended(piped_cluster: Make) -> Callable[..., PipedCluster]:
    """`ended(endpoint, engine)`: two nodes with ranks of a server, after it was looked at."""

    def look(
        endpoint: Endpoint, engine: str = "vllm", selection: Selection | None = None
    ) -> PipedCluster:
        cluster = piped_cluster(options=Options(selection=selection or Selection()))
        for node in cluster.nodes.values():
            node.run_container(SERVER)
            node.put(DROPPED)
        made = server_for(make_recipe(engine=engine, executor="mp"), *cluster.play.nodes)
        start.end_dead_server(cluster.play, replace(made, endpoint=endpoint))
        return cluster

    return look


def is_left(cluster: PipedCluster) -> bool:
    """Return whether the server and the nodes' caches are as they were."""
    assert len({*map(tuple, cluster.containers.values())}) == 1, "on all nodes the same"
    dropped = [bool(node.text(DROPPED)) for node in cluster.nodes.values()]
    left = cluster.containers["spark1"] == [SERVER]
    assert dropped == [not left] * 2, "caches are dropped before it is started again"
    return left


def test_others_are_left(server, ended):
    assert is_left(ended(server.endpoint))
    server.health = 503  # of SGLang while it loads, too
    assert is_left(ended(server.endpoint, "sglang"))
    without_vllm = Selection(skip_tags=frozenset({"vllm"}))
    assert is_left(ended(server.endpoint, selection=without_vllm)), "nobody starts it again"
    nothing_listens = Endpoint("127.0.0.1", 1, "m")
    assert is_left(ended(nothing_listens))


def test_one_that_another_recipe_takes_the_place_of_is_not_started_again(server, piped_cluster):
    server.health = 503
    cluster = piped_cluster("a", more=f"serve: {{port: {server.endpoint.port}}}\n")
    cluster.marked("ray", "vllm", "endpoint")
    cluster.head.run_container(SERVER, {"spark-cluster.recipe": "another"})
    play = cluster.play
    deployment = resolve(located(make_recipe()), play.inventory, play.nodes, 1)
    start.start(play, starting(play, deployment, 0.4))
    assert cluster.containers == {"a": []}, "its memory is released first"
    assert cluster.roles() == ["ray", "endpoint", "vllm"]
    assert [note for note in cluster.notes if "started again" in note] == []


def test_a_dead_engine_is_ended_on_all_nodes_and_the_proxy_before_it_not_asked(server, ended):
    """A proxy answers 503 while the engine loads. P07: caches are dropped after the end of a dead
    one, or it would still hold the memory."""
    port = server.endpoint.port
    behind = Endpoint("192.0.2.1", 443, "m", "key", engine_port=port, tls="self-signed")
    assert is_left(ended(behind))
    server.health = 503
    cluster = ended(behind)
    assert not is_left(cluster)
    assert "has died" in cluster.notes[0]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at it again at once, and not for long at one that shows no sign."""
    for name, seconds in (("EVERY_S", 0.05), ("LOOKS_S", 1.0), ("ALIVE_S", 0.3)):
        monkeypatch.setattr(ready, name, seconds)


@pytest.fixture
def is_dead(piped_cluster: Make, looks: None) -> Callable[..., bool]:
    """`is_dead(endpoint, node, after)`: ask about a server with a rank on spark2, whose program on
    a node is in this state from the second look on; without one, all run."""

    def ask(endpoint: Endpoint, name: str = "", **after: Any) -> bool:
        cluster = piped_cluster()
        for node in cluster.nodes.values():
            node.run_container(SERVER)
        if name:
            ends_at_the_second_look(cluster.nodes[name], **after)
        plan = server_for(make_recipe(), *cluster.play.nodes)
        assert plan.ranks == ("spark2",)
        return ready.is_dead(cluster.play, replace(plan, endpoint=endpoint))

    return ask


def ends_at_the_second_look(node: PipedNode, **after: Any) -> None:
    docker, looks = node.programs["docker"], iter(range(1000))

    def looking(words: list[str], stdin: str) -> Said | str:
        if words[:2] == ["container", "inspect"] and next(looks) == 1:
            node.run_container(SERVER, **after)
        return docker(words, stdin)

    node.programs["docker"] = looking


SIGNS = cases(__file__, "answers.json")["signs_of_life"]


@pytest.mark.parametrize(("state", "dead"), SIGNS, ids=str)
def test_one_that_is_busy_or_late_lives(server, is_dead, state, dead):
    for name, value in state.items():
        setattr(server, name, value)
    assert is_dead(server.endpoint) is dead


def test_one_that_answers_is_asked_once_and_one_that_says_so_never(server, is_dead):
    is_dead(server.endpoint)
    assert len(server.asked) == 1
    server.health = 503
    is_dead(server.endpoint)
    assert len(server.asked) == 1


def test_a_completion_that_fails_once(server, is_dead):
    refused = iter([(500, "an accident")])
    server.refuse = lambda _request: next(refused, None)
    assert not is_dead(server.endpoint)


def test_an_api_that_has_ended(is_dead):
    assert is_dead(Endpoint("127.0.0.1", 1, "m"))


@pytest.mark.parametrize("node", ["spark1", "spark2"])
@pytest.mark.parametrize("after", [{"status": "exited"}, {"status": "restarting"}, {"restarts": 1}])
def test_a_program_that_ends_or_is_restarted(server, is_dead, node, after):
    server.raw = (503, "{}")
    assert is_dead(server.endpoint, node, **after)
