"""The verdict on a recipe without a network: what works, what is not known, what does not fit."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_cluster.config.project import Project
from spark_cluster.config.recipes import load_recipe
from spark_cluster.plan.planner import Planner
from spark_cluster.plan.proposal import SizeVerdict, verdicts


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
