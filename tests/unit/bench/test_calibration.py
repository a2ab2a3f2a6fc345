"""Changes that a run would make in the constants of the speed formulas."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bench_runs import TOOL, cell, key, record, setup

from spark_cluster.bench.describe import text_of
from spark_cluster.bench.record import CellKey, CellResult, Record, Setup
from spark_cluster.bench.references import preview
from spark_cluster.config.project import Project
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipes import load_recipe
from spark_cluster.plan.calibrate import Point
from spark_cluster.plan.estimate import Constants
from spark_cluster.plan.serving import serving_of

OWN = replace(Constants(), eta_dense=0.9 * Constants().eta_dense)
LOADS = [key(prompt=2048, depth=depth) for depth in (0, 8192, 32768, 65536)]


def recipe_of(name: str, folder: Path) -> Recipe:
    return load_recipe(name, Project(folder))


def measured(id: str, recipe: Recipe, load: CellKey, **more: Any) -> CellResult:
    """A cell as a Spark of these constants would have it."""
    serving = serving_of(recipe, 1)
    context = load.depth + load.prompt + load.output / 2
    step = Point(serving, "decode_tok_s", 1.0, context, 0, load.concurrency).predicted(OWN)
    first = Point(serving, "ttfr_ms", 1.0, 0, load.depth + load.prompt).predicted(OWN)
    found = cell(id, load, tg_tps_request=[1 / step] * 5, ttfr_ms=[1e3 * first] * 5)
    return found.model_copy(update=more)


def run_of(recipe: Recipe, *loads: CellKey, **changed: Any) -> Record:
    cells = [measured("s", recipe, load) for load in loads]
    return record(*cells, setups=[served(recipe, **changed)])


def served(recipe: Recipe, id: str = "s", **changed: Any) -> Setup:
    return setup(id, recipe=recipe.name, recipe_text=text_of(recipe), **changed)


def test_a_constant_of_the_users_own_spark(tmp_path):
    recipe = recipe_of("gemma4-31b-fp8", tmp_path)
    found = preview(run_of(recipe, *LOADS))
    assert found.found is not None, found.why
    assert found.found.constants.eta_dense == pytest.approx(OWN.eta_dense, rel=0.02)
    told = found.to_dict()
    assert told["constants"]["eta_dense"]["was"] == Constants().eta_dense
    assert told["mean_error"]["after"] < 0.01 < told["mean_error"]["before"]
    assert told["points"] == 8


def test_prefix_caching_is_a_shorter_prefill(tmp_path):
    recipe = recipe_of("gemma4-31b-fp8", tmp_path)
    run = run_of(recipe, *LOADS)
    cached = run.model_copy(update={"tool": TOOL.model_copy(update={"prefix_caching": True})})
    errors = [preview(one).to_dict()["mean_error"]["before"] for one in (run, cached)]
    assert errors[1] > errors[0], "these figures are of whole prompts"


def test_what_is_no_use_is_said(tmp_path):
    recipe = recipe_of("gemma4-31b-fp8", tmp_path)
    drafted = recipe_of("gemma4-26b-a4b-fp8-mtp", tmp_path)
    cells = [
        *(measured("s", recipe, load) for load in LOADS),
        measured("s", recipe, key(prompt=9000), status="failed", reason="x"),
        measured("s", recipe, key(prompt=4096, concurrency=4)),
        *(measured(id, recipe, key()) for id in ("two", "mtp", "bare")),
    ]
    setups = [
        served(recipe),
        served(recipe, "two", replicas=2),
        served(drafted, "mtp"),
        setup("bare"),
    ]
    found = preview(record(*cells, setups=setups))
    said = " / ".join(found.left_out)
    assert "two: several replicas share its requests" in said
    assert "mtp: decoding with a drafter" in said
    assert "bare: the record does not contain its recipe" in said
    assert found.found is not None


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"name": "x"}', "[" * 9999])
def test_a_record_without_a_recipe(text):
    found = preview(record(cell(tg_tps=[7.0]), setups=[setup(recipe_text=text)]))
    assert found.found is None
    assert "found 0 usable points" in found.why
    assert found.to_dict()["left_out"] == ["s: the record does not contain its recipe"]


def test_figures_of_no_spark(tmp_path):
    recipe = recipe_of("gemma4-31b-fp8", tmp_path)
    slow = [cell("s", load, tg_tps=[0.1] * 5) for load in LOADS]
    found = preview(record(*slow, setups=[served(recipe)]))
    assert "as slow as this model can be" in found.why
