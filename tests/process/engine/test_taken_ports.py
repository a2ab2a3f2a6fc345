"""Ports that another program has are refused before anything is fetched; our own are none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from factories import make_recipe
from fake_cluster import FakeCluster, Make
from serve_plans import deployment_for, inventory_of

from spark_cluster.config.fact_gathering import Listener, listeners
from spark_cluster.engine import firewall
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.engine.resolve import ServedModel, resolve_models
from spark_cluster.errors import Refused
from spark_cluster.node.containers import ENDPOINT

CHAT, EMBEDDING = "gemma4-26b-a4b-nvfp4", "qwen3-embedding-0.6b"
LISTENS = 'LISTEN 0 5 {}:{} 0.0.0.0:* users:(("{}",pid=77,fd=3))\n'


def listens(port, program="nginx", address="0.0.0.0"):
    return LISTENS.format(address, port, program)


@pytest.fixture(scope="module")
def cluster(lasting_cluster: Make) -> FakeCluster:
    return lasting_cluster("a", "b")


def check(cluster, *, tp=2, **told):
    """Look at two nodes before one server is started on them."""
    nodes, serve = cluster.play.nodes, {"bind": "management", "open": True}
    deployment = deployment_for(make_recipe(executor="ray"), *nodes[:tp], tp=tp, **serve)
    look(cluster, deployment, **told)


def check_models(cluster, *, on_request=False, **told):
    """Look at a node before CHAT and EMBEDDING are started on it, at the ports 18000 and 18001."""
    node = cluster.play.head
    models = [ServedModel(make_recipe(name), "a") for name in (CHAT, EMBEDDING)]
    models[1] = replace(models[1], on_request=on_request)
    entries = [{"recipe": model.recipe.name} for model in models]
    look(cluster, resolve_models(models, inventory_of(node, recipes=entries), [node]), **told)


def look(cluster, deployment, *, proxy="inactive", runs=(), **said):
    """Look at nodes that listen as told.

    Args:
        runs: our programs that run, or these with the URL that they were started for.
    """
    urls = runs if isinstance(runs, dict) else dict.fromkeys(runs, "")
    for name, node in cluster.nodes.items():
        node.programs["ss"] = lambda _words, _stdin, name=name: said.get(name, "")
        node.programs["systemctl"] = lambda _words, _stdin: f"{proxy}\n"
        with node.state("docker") as docker:
            docker["containers"] = {}
        for program, url in urls.items():
            node.run_container(program, {ENDPOINT: url})
    firewall.must_be_free(cluster.play, deployment)


@pytest.mark.parametrize(
    ("node", "said", "words"),
    [
        ("a", listens(8000), r"port 8000, which the endpoint needs, is taken by nginx \(PID 77\)"),
        ("a", listens(18000, address="127.0.0.1"), "port 18000, which the server needs"),
        ("a", listens(6379, "redis-server"), "head of Ray needs, is taken by redis-server"),
        ("a", listens(8265, address="127.0.0.1"), "port 8265, which the dashboard of Ray"),
        ("b", listens(18301), "port 18301, which the services of Ray"),
        ("b", "LISTEN 0 5 *:18302 *:*\n", "is taken by another program"),
    ],
)
def test_a_port_that_is_taken(cluster, node, said, words):
    with pytest.raises(Refused, match=words) as caught:
        check(cluster, **{node: said})
    assert caught.value.where == node
    assert "choose another port with" in caught.value.hint


@pytest.mark.parametrize(
    "given",
    [
        {"a": listens(22) + listens(8000, address="192.168.9.9") + "odd\n"},
        {"b": listens(8000) + listens(6379)},
        {"a": listens(8000, "haproxy"), "proxy": "active"},
        {"a": listens(18000, "vllm") + listens(6379, "gcs_server"), "runs": (SERVER, RAY)},
        {"a": listens(6379), "tp": 1},
    ],
)
def test_ports_that_are_free_or_ours_or_not_needed(cluster, given):
    check(cluster, **given)


def test_a_proxy_of_someone_else(cluster):
    with pytest.raises(Refused, match="is taken by haproxy"):
        check(cluster, a=listens(8000, "haproxy"))


@pytest.mark.parametrize(
    ("port", "purpose", "told"),
    [
        (8000, "endpoint", {}),
        (18000, "server", {}),
        (18001, "server", {"on_request": True}),
        (8000, "endpoint", {"runs": {SERVER: "http://127.0.0.1:18000/v1"}}),
    ],
)
def test_a_port_of_several_models_that_is_taken(cluster, port, purpose, told):
    with pytest.raises(Refused, match=f"port {port}, which the {purpose} needs, is taken by nginx"):
        check_models(cluster, a=listens(port), **told)


@pytest.mark.parametrize(
    ("said", "runs"),
    [
        (listens(8000, "vllm"), {SERVER: "http://127.0.0.1:8000/v1"}),
        (listens(18000, "vllm"), {f"{SERVER}-{EMBEDDING}": "http://127.0.0.1:18000/v1"}),
        (listens(22), {SERVER: "http://127.0.0.1:x/v1"}),
    ],
)
def test_a_port_that_a_server_of_ours_gives_up(cluster, said, runs):
    """One server that several models take the place of, or a model that gets another port."""
    check_models(cluster, a=said, runs=runs)


def test_listeners():
    text = (
        'LISTEN 0 128 127.0.0.53%lo:53 0.0.0.0:* users:(("systemd-resolve",pid=9,fd=14))\n'
        "LISTEN 0 128 [::]:22 [::]:*\nState Recv-Q\n"
    )
    one, two = listeners(text)
    assert one == Listener("127.0.0.53", 53, "systemd-resolve", 9)
    assert (two.address, str(two)) == ("::", "another program")
    assert (one.blocks("127.0.0.1"), two.blocks("127.0.0.1"), one.blocks("*")) == (
        False, True, True,
    )  # fmt: skip
