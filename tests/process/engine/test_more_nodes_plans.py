"""What serves on three and four nodes: one model over all, stages, replicas, and what cannot be."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Interface

import pytest
from factories import make_node, make_recipe
from serve_plans import deployment_for, inventory_of, server_for

from spark_cluster.config.recipe_schema import TensorParallel
from spark_cluster.config.topology import Link, Node
from spark_cluster.engine.resolve import resolve
from spark_cluster.errors import Refused


def linked(number: int) -> Node:
    node = make_node(f"spark{number}", head=number == 1, address=f"10.0.0.{number}")
    link = Link("enp1s0f1np1", IPv4Interface(f"192.168.177.{10 + number}/24"))
    return replace(node, links=(link,))


FOUR = tuple(linked(number) for number in (1, 2, 3, 4))
NAMES = tuple(node.name for node in FOUR)


def test_one_model_over_four() -> None:
    found = deployment_for(make_recipe("gemma4-31b-fp8"), *FOUR, tp=4)
    server = found.first
    assert server.node_names == NAMES
    assert found.idle == ()
    flags = list(server.args)
    assert flags[flags.index("--tensor-parallel-size") + 1] == "4"
    assert server.labels["spark-cluster.tp"] == "4"
    assert found.firewall["peers"] == NAMES


def test_three_stages_on_three_of_four() -> None:
    found = deployment_for(make_recipe(pipeline_parallel=3), *FOUR, tp=1)
    server = found.first
    assert (server.node_names, server.size) == (NAMES[:3], 3)
    assert [node.name for node in found.idle] == ["spark4"]
    flags = list(server.args)
    assert flags[flags.index("--pipeline-parallel-size") + 1] == "3"
    assert found.firewall["peers"] == NAMES[:3]


@pytest.mark.parametrize("count", [3, 4])
def test_replicas_on_three_and_four(count: int) -> None:
    found = resolve(make_recipe(), inventory_of(*FOUR), FOUR, 1, replicas=count)
    assert [server.node_names for server in found.servers] == [(n,) for n in NAMES[:count]]
    hosts = ["127.0.0.1", *(f"192.168.177.{10 + n}" for n in range(2, count + 1))]
    assert [server.host for server in found.servers] == hosts
    assert [replica.node for replica in found.endpoint.replicas] == list(NAMES[:count])
    assert found.firewall["peers"] == NAMES[:count]


def test_too_few_nodes_for_four() -> None:
    with pytest.raises(Refused, match="--tp 4 needs 4 nodes; there are 3") as error:
        server_for(make_recipe("gemma4-31b-fp8"), *FOUR[:3], tp=4)
    assert (error.value.hint or "").endswith("or use --tp 2"), "heads are not divided by three"


@pytest.mark.parametrize(
    ("sizes", "usual", "by_nodes"),
    [
        (TensorParallel(max=4), (1, 2, 4), {1: 1, 2: 2, 3: 2, 4: 4, 5: 4}),
        (TensorParallel(max=4, default=2), (1, 2, 4), {1: 1, 3: 2, 4: 2}),
        (TensorParallel(min=2, max=4, default=2), (2, 4), {1: 1, 2: 2, 4: 2}),
        (TensorParallel(min=3, max=3), (3,), {2: 2, 3: 3, 4: 3}),
        (TensorParallel(max=6), (1, 2, 4, 6), {5: 4, 6: 6}),
        (TensorParallel(max=64), (1, 2), {1: 1, 4: 2}),
        (TensorParallel(max=64, default=4), (1, 2, 4), {3: 2, 4: 4, 8: 4}),
    ],
)
def test_the_size_that_is_taken(
    sizes: TensorParallel, usual: tuple[int, ...], by_nodes: dict[int, int]
) -> None:
    assert sizes.usual == usual
    assert {nodes: sizes.size_for(nodes) for nodes in by_nodes} == by_nodes
