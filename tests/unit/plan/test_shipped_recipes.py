"""Shipped recipes without a network: the verdict on each, and what is proposed of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_cluster.config.extension import Allowances
from spark_cluster.config.project import Project
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipes import load_recipe
from spark_cluster.plan.planner import Planner
from spark_cluster.plan.proposal import (
    CODING_CONTEXT,
    Preference,
    SizeVerdict,
    Want,
    propose,
    verdicts,
)


def of(name: str) -> dict[int, SizeVerdict]:
    project = Project(Path(__file__).parent)
    recipe = load_recipe(name, project)
    found = verdicts(recipe, Planner(project), recipe.tensor_parallel.usual)
    return {verdict.tp: verdict for verdict in found}


@pytest.mark.parametrize(
    ("name", "sizes"), [("lab-paris", [1, 2, 4]), ("qwen3-embedding-0.6b", [1])]
)
def test_a_toy_and_a_model_that_generates_nothing_work_and_have_no_speed(name, sizes):
    found = {tp: (verdict.feasible, verdict.decode) for tp, verdict in of(name).items()}
    assert found == dict.fromkeys(sizes, (True, None))


def test_a_model_of_unknown_shape_is_neither_yes_nor_no(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    text = "name: r\nmodel: {name: nobody/knows, served_name: m}\nimage: {ref: 'i:1'}\n"
    (tmp_path / "recipes/r.yaml").write_text(text)
    project = Project(tmp_path)
    found = list(verdicts(load_recipe("r", project), Planner(project)))
    assert [(v.tp, v.feasible, v.decode) for v in found] == [(1, None, None), (2, None, None)]
    assert "nobody/knows" in found[0].reason


def test_what_does_not_fit_has_a_reason_and_no_speed(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes/r.yaml").write_text(
        "name: r\nmodel: {name: Qwen/Qwen3-235B-A22B, served_name: m, quantization: bf16}\n"
        "image: {ref: 'i:1'}\ntensor_parallel: {min: 1, max: 1}\n"
    )
    project = Project(tmp_path)
    (verdict,) = verdicts(load_recipe("r", project), Planner(project))
    assert verdict.feasible is False
    assert "GiB" in verdict.reason
    assert verdict.decode is None


# --- what is proposed for what a user wants -------------------------------------------------------


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
