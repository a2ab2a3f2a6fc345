"""`recipes list` and `recipes show`: what people see and what programs get."""

import json
from pathlib import Path

import pytest

from spark_cluster.cli.recipes import headlines
from spark_cluster.config.project import Project
from spark_cluster.config.recipe_schema import TensorParallel
from spark_cluster.config.recipes import load_recipe

OWN = """\
name: {name}
model: {{name: org/m, served_name: m}}
image: {{ref: "repo/image:1"}}
"""


@pytest.fixture
def recipes(tmp_path):
    """The folder of the user's own recipes."""
    (tmp_path / "recipes").mkdir()
    return tmp_path / "recipes"


def listed(ask):
    return {r["name"]: r for r in json.loads(ask("recipes", "list", "--json").stdout)["recipes"]}


def test_the_list_has_every_shipped_recipe_and_what_was_measured(ask):
    said = ask("recipes", "list").stdout
    for name in Project(Path(__file__).parent).list("recipes"):
        assert name in said
    assert said.count("7 tok/s and the Bandwidth Wall") == 1, "a source is named once"
    one = listed(ask)["gemma4-31b-fp8"]
    assert (one["valid"], one["own"], one["quantization"]) == (True, False, "fp8-online")
    assert one["tensor_parallel"] == {"min": 1, "max": 4, "default": 2}
    assert [(m["tp"], m["decode_tok_s"]) for m in one["measured_tok_s"]] == [(1, 6.93), (2, 11.2)]


def test_what_was_measured_of_the_fitted_models_lies_in_the_range_that_is_expected(ask):
    """Short prompts are a little faster than the 1,024 tokens of context that are assumed."""
    told = [
        (recipe["name"], recipe["expected_tok_s"][str(measured["tp"])], measured["decode_tok_s"])
        for recipe in listed(ask).values()
        for measured in recipe["measured_tok_s"]
        if recipe["name"].startswith("gemma4")
        if "not named" not in measured["note"]  # else the figure may be of another build
    ]
    assert len(told) >= 12
    for name, expected, speed in told:
        assert expected["low"] <= speed <= 1.02 * expected["high"], name


def test_a_broken_recipe_of_the_user_does_not_break_the_list(ask, recipes):
    (recipes / "mine.yaml").write_text(OWN.format(name="mine"))
    (recipes / "bad.yaml").write_text(OWN.format(name="bad") + "engin_args: {}\n")
    (recipes / "worse.yaml").write_bytes(b"\xff\xfe\x00")
    said = ask("recipes", "list").stdout
    assert "mine (yours)" in said
    assert "bad.yaml:4: engin_args: unknown field; did you mean 'engine_args'?" in said
    found = listed(ask)
    assert (found["mine"]["own"], found["mine"]["expected_tok_s"]) == (True, {})
    assert not found["worse"]["valid"]
    assert found["bad"]["error"]["where"].endswith("bad.yaml:4")
    assert found["gemma4-31b-nvfp4"]["valid"]


def test_headlines_are_one_for_each_source_and_size(tmp_path):
    recipe = load_recipe("gemma4-26b-a4b-fp8", Project(tmp_path))
    assert [m.decode_tok_s for m in headlines(recipe)] == [36.9, 35]
    recipe = load_recipe("gemma4-26b-a4b-nvfp4", Project(tmp_path))
    assert [m.decode_tok_s for m in headlines(recipe)] == [51.6, 48.2], "not of three requests"


def test_every_shipped_model_that_generates_has_an_expected_speed_for_each_size(ask):
    for recipe in listed(ask).values():
        none = recipe["name"] in {"lab-paris", "qwen3-embedding-0.6b"}
        sizes = () if none else TensorParallel(**recipe["tensor_parallel"]).usual
        assert set(recipe["expected_tok_s"]) == {str(tp) for tp in sizes}, recipe["name"]
