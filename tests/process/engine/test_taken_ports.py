"""Ports that another program has are refused before anything is fetched; our own are none."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cases import cases
from factories import make_recipe
from fake_cluster import FakeCluster, Make
from serve_plans import deployment_for, inventory_of

from spark_cluster.config.fact_gathering import Listener, listeners
from spark_cluster.engine import firewall
from spark_cluster.engine.resolve import ServedModel, resolve_models
from spark_cluster.errors import Refused
from spark_cluster.node.containers import ENDPOINT

CHAT, EMBEDDING = "gemma4-26b-a4b-nvfp4", "qwen3-embedding-0.6b"
LISTENS = 'LISTEN 0 5 {}:{} 0.0.0.0:* users:(("{}",pid=77,fd=3))'
CASES = cases(__file__, "taken_ports.toml")["case"]


@pytest.fixture(scope="module")
def cluster(lasting_cluster: Make) -> FakeCluster:
    return lasting_cluster("a", "b")


def wanted(cluster, case):
    """Return what is to be started."""
    nodes = cluster.play.nodes
    if not case.get("models"):
        serve, tp = {"bind": "management", "open": True}, case.get("tp", 2)
        return deployment_for(make_recipe(executor="ray"), *nodes[:tp], tp=tp, **serve)
    models = [ServedModel(make_recipe(name), "a") for name in (CHAT, EMBEDDING)]
    models[1] = replace(models[1], on_request=case.get("on_request", False))
    entries = [{"recipe": model.recipe.name} for model in models]
    return resolve_models(models, inventory_of(nodes[0], recipes=entries), [nodes[0]])


def listens(port, program="nginx", address="0.0.0.0"):
    return LISTENS.format(address, port, program)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.get("taken", "free"))
def test_ports_that_are_taken_or_free(cluster, case):
    for name, node in cluster.nodes.items():
        rows = case["listens"].get(name, ())
        said = "".join(f"{row if isinstance(row, str) else listens(*row)}\n" for row in rows)
        node.programs["ss"] = lambda _words, _stdin, said=said: said
        node.programs["systemctl"] = lambda *_: f"{case.get('proxy', 'inactive')}\n"
        with node.state("docker") as docker:
            docker["containers"] = {}
        for program, url in case.get("runs", {}).items():
            node.run_container(program, {ENDPOINT: url})
    deployment = wanted(cluster, case)
    if "taken" not in case:
        firewall.must_be_free(cluster.play, deployment)
        return
    with pytest.raises(Refused) as caught:
        firewall.must_be_free(cluster.play, deployment)
    assert case["taken"] in caught.value.message
    assert caught.value.where == case["where"]
    assert "choose another port with" in caught.value.hint


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
