"""Several models behind one endpoint: what each is started with, and what cannot go together."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Interface
from typing import Any

import pytest
from factories import make_node, make_recipe
from serve_plans import inventory_of, snapshot_of

from spark_cluster.config.project import Project
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.topology import Link, Node
from spark_cluster.engine import proxy
from spark_cluster.engine.deployment import Deployment
from spark_cluster.engine.resolve import ServedModel, must_go_together, resolve_models
from spark_cluster.errors import Refused
from spark_cluster.resources import File

CHAT, EMBEDDING = "gemma4-26b-a4b-nvfp4", "qwen3-embedding-0.6b"
NAMES = [CHAT, EMBEDDING]
DRAFTER = "google/gemma-4-26B-A4B-it-assistant"


def linked(name: str, number: int) -> Node:
    node = make_node(name, head=number == 1, address=f"10.0.0.{number}")
    link = Link("enp1s0f1np1", IPv4Interface(f"192.168.177.{10 + number}/24"))
    return replace(node, links=(link,))


NODES = (linked("a", 1), linked("b", 2))


def served(name: str, node: str = "a", *aliases: str) -> ServedModel:
    return ServedModel(make_recipe(name), node, aliases)


def deployment_of(
    *models: ServedModel, nodes: tuple[Node, ...] = NODES, **serve: Any
) -> Deployment:
    chosen = models or (served(CHAT), served(EMBEDDING, "a", "text-embedding-3-small"))
    entries = [{"recipe": model.recipe.name} for model in chosen]
    return resolve_models(chosen, inventory_of(*nodes, recipes=entries, **serve), nodes)


def test_each_has_a_name_and_a_port_of_its_own_on_the_head() -> None:
    found = deployment_of().servers
    assert [server.program for server in found] == [
        f"spark-vllm-{CHAT}",
        f"spark-vllm-{EMBEDDING}",
    ]
    assert [(d.host, d.port) for d in found] == [("127.0.0.1", 18000), ("127.0.0.1", 18001)]
    assert [d.node_names for d in found] == [("a",), ("a",)]
    assert not any(d.on_ray for d in found)


def test_its_server_knows_the_aliases_that_the_proxy_sends_it() -> None:
    chat, embedding = deployment_of().servers
    assert chat.flags["served-model-name"] == "gemma-4-26b"
    words = list(embedding.args)
    at = words.index("--served-model-name")
    assert words[at + 1 : at + 3] == ["qwen3-embedding", "text-embedding-3-small"]


def test_folders_that_are_known_later_change_what_they_would_have_changed() -> None:
    aliased = served(EMBEDDING, "b", "text-embedding-3-small")
    models = (served("gemma4-26b-a4b-fp8-mtp"), aliased)
    repositories = [models[0].recipe.model.name, DRAFTER, aliased.recipe.model.name]
    folders = {name: snapshot_of(name) for name in repositories}
    known = [replace(model, recipe=model.recipe.located(folders)) for model in models]
    assert deployment_of(*models).located(folders) == deployment_of(*known)


def test_each_server_knows_its_own_model_and_address() -> None:
    servers = deployment_of().servers
    assert [server.endpoint.model for server in servers] == ["gemma-4-26b", "qwen3-embedding"]
    assert [server.endpoint.url for server in servers] == [
        "http://127.0.0.1:18000/v1",
        "http://127.0.0.1:18001/v1",
    ]
    labels = [server.labels["spark-cluster.model"] for server in servers]
    assert labels == ["gemma-4-26b", "qwen3-embedding"]


def test_the_proxys_description_names_them() -> None:
    deployment = deployment_of()
    role = Project().load_role("endpoint")
    settings = role.settings_model(**deployment.endpoint.proxy_settings())
    files = {
        r.path: str(r.content) for r in role.function(NODES[0], settings) if isinstance(r, File)
    }
    assert proxy.models_of(files[proxy.DESCRIPTION]) == deployment.endpoint.models
    assert proxy.described(files[proxy.DESCRIPTION]) is not None
    for odd in (None, "", "[]", '{"models": 3}', '{"models": [{"node": "a"}]}'):
        assert proxy.models_of(odd) == ()


def test_a_model_on_another_node_is_reached_over_the_fabric_only() -> None:
    found = deployment_of(served(CHAT), served(EMBEDDING, "b"))
    assert found.servers[1].host == "192.168.177.12"
    assert [node.name for node in found.nodes] == ["a", "b"]
    assert found.firewall["peers"] == ("a", "b")
    assert {(18000, 18000), (18001, 18001)} <= set(found.firewall["ports"])


def test_one_node_is_enough_and_the_other_serves_nothing() -> None:
    deployment = deployment_of()
    assert ([n.name for n in deployment.nodes], [n.name for n in deployment.idle]) == (["a"], ["b"])
    assert deployment.firewall["peers"] == ()


def renamed(recipe: Recipe, served_name: str) -> ServedModel:
    model = recipe.model.model_copy(update={"served_name": served_name})
    return ServedModel(recipe.model_copy(update={"model": model}), "a")


@pytest.mark.parametrize(
    ("models", "why"),
    [
        ((served(CHAT), served(EMBEDDING, "a", "gemma-4-26b")), "'gemma-4-26b' is a name of"),
        ((served(CHAT), served("minimax-m2.5-awq")), "minimax-m2.5-awq takes 2 nodes"),
        ((served(CHAT), renamed(make_recipe(EMBEDDING), "it's")), "cannot look for the name"),
        ((served(CHAT), renamed(make_recipe(EMBEDDING), "a\nb")), "cannot look for the name"),
    ],
)
def test_what_cannot_go_together_is_refused(models: tuple[ServedModel, ...], why: str) -> None:
    with pytest.raises(Refused, match=why):
        must_go_together(models)


def test_nodes_that_cannot_be_reached_are_refused() -> None:
    with pytest.raises(Refused, match="b has no link to the head"):
        deployment_of(
            served(CHAT), served(EMBEDDING, "b"), nodes=(NODES[0], replace(NODES[1], links=()))
        )
    with pytest.raises(Refused, match="is to be served on c, which is not among the chosen nodes"):
        deployment_of(served(CHAT), served(EMBEDDING, "c"))
