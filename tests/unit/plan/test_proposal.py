"""What is proposed for what a user wants, of the shipped recipes."""

from __future__ import annotations

import pytest

from spark_cluster.config.extension import Allowances
from spark_cluster.config.project import Project
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipes import load_recipe
from spark_cluster.plan.planner import Planner
from spark_cluster.plan.proposal import CODING_CONTEXT, Preference, Want, propose


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Planner, dict[str, Recipe]]:
    project = Project(tmp_path_factory.mktemp("project"))
    recipes = {name: load_recipe(name, project, Allowances()) for name in project.list("recipes")}
    return Planner(project), recipes


WANTS: tuple[Want, ...] = ("chat", "coding", "vision", "embedding")


@pytest.mark.parametrize("want", WANTS)
@pytest.mark.parametrize("nodes", [1, 2])
def test_what_is_proposed_suits_and_fits(shipped, want: Want, nodes: int) -> None:
    planner, recipes = shipped
    found = propose(planner, recipes.values(), want, "latency", nodes)
    assert found
    assert len({one.recipe for one in found}) == len(found)
    assert "lab-paris" not in {one.recipe for one in found}
    for one in found:
        recipe = recipes[one.recipe]
        if nodes == 1:
            assert (one.option, recipe.tensor_parallel.min) == ("--tp 1", 1)
        if want == "embedding":
            assert (recipe.kind, one.tok_s) == ("embedding", 0.0)
            continue
        assert recipe.kind == "chat"
        assert one.low <= one.tok_s <= one.high
        if want == "coding":
            assert "tool_call" in recipe.readiness.rungs
            assert one.context is None or one.context >= CODING_CONTEXT
        if want == "vision":
            assert "vision" in recipe.readiness.rungs


@pytest.mark.parametrize("speed", ["latency", "throughput"])
def test_the_fastest_comes_first(shipped, speed: Preference) -> None:
    planner, recipes = shipped
    found = propose(planner, recipes.values(), "chat", speed, 2)
    figures = [one.tok_s if speed == "latency" else one.total_tok_s for one in found]
    assert [round(f, 1) for f in figures] == sorted((round(f, 1) for f in figures), reverse=True)
    options = {one.option for one in found}
    assert options <= {"--tp 1", "--tp 2", "--replicas 2"}
    assert ("--replicas 2" in options) is (speed == "throughput")
    models = [recipes[one.recipe].model.base or recipes[one.recipe].model.name for one in found]
    assert len(set(models)) == len(models), "one recipe for each model"
