"""vLLM's data parallel mode over Ray: what is started on each node, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Interface

import pytest
from factories import make_node, make_recipe
from serve_plans import deployment_for, inventory_of, server_for

from spark_cluster.cli.serving import changed
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.topology import Link, Node
from spark_cluster.engine.deployment import Deployment
from spark_cluster.engine.resolve import resolve
from spark_cluster.engine.vllm import VllmEngine
from spark_cluster.errors import Refused


def linked(number: int) -> Node:
    node = make_node(f"spark{number}", head=number == 1, address=f"10.0.0.{number}")
    link = Link("enp1s0f1np1", IPv4Interface(f"192.168.177.{10 + number}/24"))
    return replace(node, links=(link,))


FOUR = tuple(linked(number) for number in (1, 2, 3, 4))


def of_model(name: str, **fields: object) -> Recipe:
    recipe = make_recipe(executor="ray", **fields)
    model = recipe.model.model_copy(update={"name": name, "base": None})
    return recipe.model_copy(update={"model": model})


@pytest.fixture(scope="module")
def deployment() -> Deployment:
    return deployment_for(make_recipe(executor="ray", data_parallel=2), *FOUR, tp=1)


def test_a_rank_on_each_of_two_nodes(deployment: Deployment) -> None:
    server = deployment.first
    assert server.node_names == ("spark1", "spark2")
    assert server.on_ray
    assert [node.name for node in deployment.idle] == ["spark3", "spark4"]
    labels = server.labels
    assert labels["spark-cluster.tp"] == "1"
    assert labels["spark-cluster.nodes"] == labels["spark-cluster.data-parallel"] == "2"
    assert deployment.firewall["peers"] == ("spark1", "spark2")
    assert (29550, 29551) in deployment.firewall["ports"], "where the ranks find the server"


def test_the_server_puts_one_rank_on_each_node(deployment: Deployment) -> None:
    head = VllmEngine().server(FOUR[0], deployment.first, 29501)
    assert head is not None
    words = head.command
    assert words[words.index("--data-parallel-size") + 1] == "2"
    assert {
        "--data-parallel-backend=ray",
        "--data-parallel-size-local=1",
        "--data-parallel-address=192.168.177.11",
        "--distributed-executor-backend=ray",
    } <= set(words)
    assert VllmEngine().server(FOUR[1], deployment.first, 29501) is None
    alone = VllmEngine().server(FOUR[0], server_for(make_recipe(executor="ray"), *FOUR[:2]), 29501)
    assert alone is not None
    assert not any("data-parallel" in word for word in alone.command)


@pytest.mark.parametrize(
    ("fields", "tp", "why"),
    [
        ({}, 2, "each rank is on one node here, and the recipe shares the model over 2"),
        ({"pipeline_parallel": 2}, 1, "the recipe shares the model over 2"),
        ({"executor": "mp"}, 1, "Ray joins its ranks, and the executor is mp"),
    ],
)
def test_what_is_not_joined_is_refused(fields: dict[str, object], tp: int, why: str) -> None:
    with pytest.raises(Refused, match=why) as caught:
        server_for(make_recipe(**{"executor": "ray", "data_parallel": 2, **fields}), *FOUR, tp=tp)
    assert "one replica on each Spark" in (caught.value.hint or "")


def test_too_few_nodes_and_replicas_of_ranks_are_refused() -> None:
    with pytest.raises(Refused, match="data-parallel ranks needs 3 nodes; there are 2"):
        server_for(make_recipe(executor="ray", data_parallel=3), *FOUR[:2], tp=1)
    with pytest.raises(Refused, match="takes 2 nodes for one server"):
        resolve(
            make_recipe(executor="ray", data_parallel=2), inventory_of(*FOUR), FOUR, 1, replicas=2
        )


def test_a_rank_has_one_node_unless_the_recipe_needs_more() -> None:
    assert make_recipe(executor="ray", data_parallel=2).size_for(4) == 1


def test_the_option_is_an_override() -> None:
    recipe = changed(of_model("Qwen/Qwen3-8B"), ("data-parallel-size=2",))
    assert recipe.data_parallel == 2
    assert dict(recipe.overrides) == {"data-parallel-size": 2}, "a dense model has no experts"
    assert changed(recipe, ("data-parallel-size=2",)) is recipe
    found = server_for(recipe, *FOUR, tp=1)
    assert found.labels["spark-cluster.overrides"] == "-o data-parallel-size=2"
    assert "--data-parallel-size" in found.args


def test_a_mixture_of_experts_gets_expert_parallelism() -> None:
    mixture = of_model("openai/gpt-oss-20b")
    recipe = changed(mixture, ("data-parallel-size=2",))
    assert dict(recipe.overrides) == {"data-parallel-size": 2, "enable-expert-parallel": True}
    again = changed(mixture, ("data-parallel-size=2", "enable-expert-parallel=true"))
    assert again.overrides == recipe.overrides, "as `swap` reads it from the label"
    without = changed(mixture, ("data-parallel-size=2", "enable-expert-parallel=false"))
    assert without.engine_args.get("enable-expert-parallel") is None
    assert not changed(mixture, ("data-parallel-size=1",)).overrides
    assert not changed(of_model("example/nowhere"), ("data-parallel-size=2",)).engine_args.get(
        "enable-expert-parallel"
    )
