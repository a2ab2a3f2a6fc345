"""A deployment: the place of each server, and each recipe once with all of its nodes."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Interface

import pytest
from factories import make_node, make_recipe
from serve_plans import deployment_for, inventory_of

from spark_cluster.config.topology import Link, Node
from spark_cluster.engine.deployment import Deployment
from spark_cluster.engine.resolve import ServedModel, resolve, resolve_models

CHAT, EMBEDDING = "gemma4-26b-a4b-nvfp4", "qwen3-embedding-0.6b"


def linked(name: str, number: int) -> Node:
    node = make_node(name, head=number == 1, address=f"10.0.0.{number}")
    link = Link("enp1s0f1np1", IPv4Interface(f"192.168.177.{10 + number}/24"))
    return replace(node, links=(link,))


NODES = tuple(linked(name, number) for number, name in enumerate("abc", 1))


def models(*where: tuple[str, str]) -> Deployment:
    """Return what serves these recipes on these nodes."""
    served = [ServedModel(make_recipe(name), node) for name, node in where]
    entries = [{"recipe": name} for name, _ in where]
    return resolve_models(served, inventory_of(*NODES, recipes=entries), NODES)


ONE = deployment_for(make_recipe(), *NODES, tp=2)
REPLICAS = resolve(make_recipe(), inventory_of(*NODES), NODES, 1, replicas=3)
MODELS = models((CHAT, "a"), (EMBEDDING, "b"))


@pytest.mark.parametrize(
    ("deployment", "keys"),
    [
        (ONE, [("a", "spark-vllm")]),
        (REPLICAS, [("a", "spark-vllm"), ("b", "spark-vllm"), ("c", "spark-vllm")]),
        (MODELS, [("a", f"spark-vllm-{CHAT}"), ("b", f"spark-vllm-{EMBEDDING}")]),
    ],
)
def test_a_servers_key_is_its_head_and_its_program_there(
    deployment: Deployment, keys: list[tuple[str, str]]
) -> None:
    assert [server.key for server in deployment.servers] == keys


@pytest.mark.parametrize(
    ("deployment", "recipes"),
    [
        (ONE, {make_recipe().name: ("a", "b")}),
        (REPLICAS, {make_recipe().name: ("a", "b", "c")}),
        (MODELS, {CHAT: ("a",), EMBEDDING: ("b",)}),
    ],
)
def test_each_recipe_is_fetched_once_for_all_nodes_that_serve_it(
    deployment: Deployment, recipes: dict[str, tuple[str, ...]]
) -> None:
    assert {one.recipe.name: one.node_names for one in deployment.recipes} == recipes


def test_only_one_server_over_all_nodes_is_one() -> None:
    assert [made.is_one for made in (ONE, REPLICAS, MODELS)] == [True, False, False]
