"""A plan is resolved once: with the models' folders put in later, it is as if they were known."""

from __future__ import annotations

from ipaddress import IPv4Interface

import pytest
from factories import SHIPPED, make_recipe
from serve_plans import inventory_of, located, snapshot_of

from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_schema import Drafter
from spark_cluster.config.topology import Link, Node
from spark_cluster.engine.resolve import resolve

NODES = tuple(
    Node(
        name,
        f"10.0.0.{number}",
        is_head=number == 1,
        links=(Link("enp1s0f1np1", IPv4Interface(f"192.168.177.{10 + number}/24")),),
    )
    for number, name in enumerate("abcd", 1)
)
EAGLE = Drafter(method="eagle3", name="org/drafter", tokens=3)


def folders(recipe: Recipe) -> dict[str, str]:
    """Return the folders of a recipe's models in the hub cache."""
    names = (recipe.model.name, recipe.drafter.name if recipe.drafter else None)
    return {name: snapshot_of(name) for name in names if name}


@pytest.mark.parametrize("name", SHIPPED.list("recipes"))
def test_folders_that_are_known_later_change_what_they_would_have_changed(name: str) -> None:
    recipe, inventory = make_recipe(name), inventory_of(*NODES)
    tp = recipe.tensor_parallel.min
    made = resolve(recipe, inventory, NODES, tp).located(folders(recipe))
    assert made == resolve(located(recipe), inventory, NODES, tp)
    assert made.located(folders(recipe)) == made


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_the_drafters_folder_is_in_flags_launch_and_mounts(engine: str) -> None:
    recipe = make_recipe(drafter=EAGLE, engine=engine, executor="mp")
    inventory = inventory_of(*NODES)
    made = resolve(recipe, inventory, NODES, 2).located(folders(recipe))
    assert made == resolve(located(recipe), inventory, NODES, 2)
    folder = snapshot_of("org/drafter")
    server = made.first
    assert server.launch.speculative["model"] == folder
    assert folder in str(server.flags)
    assert any(folder.rpartition("/snapshots/")[0] in mount for mount in server.mounts)


@pytest.mark.parametrize("count", [1, 3])
def test_servers_of_a_plan_have_its_folders(count: int) -> None:
    recipe, inventory = make_recipe("gemma4-26b-a4b-nvfp4"), inventory_of(*NODES)
    found = resolve(recipe, inventory, NODES, 1, replicas=count)
    assert found.is_one == (count == 1)
    later = found.located(folders(recipe))
    assert later == resolve(located(recipe), inventory, NODES, 1, replicas=count)
    assert len(later.servers) == count
    for server in later.servers:
        assert server.model_path == snapshot_of(recipe.model.name)
