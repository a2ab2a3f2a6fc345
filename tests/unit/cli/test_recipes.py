"""`recipes list` and `recipes show`: what people see and what programs get."""

from __future__ import annotations

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


def test_the_list_has_every_shipped_recipe_and_what_was_measured(ask):
    said = ask("recipes", "list").stdout
    for name in Project(Path(__file__).parent).list("recipes"):
        assert name in said
    assert "TP=2 11.2 [" in said
    assert said.count("7 tok/s and the Bandwidth Wall") == 1, "a source is named once"
    assert max(len(line) for line in said.splitlines() if "https://" not in line) <= 100


def test_what_was_measured_of_the_fitted_models_lies_in_the_range_that_is_expected(ask):
    found = json.loads(ask("recipes", "list", "--json").stdout)["recipes"]
    fitted = [recipe for recipe in found if recipe["name"].startswith("gemma4")]
    told = [(r, m) for r in fitted for m in r["measured_tok_s"]]
    assert len(told) >= 12
    for recipe, measured in told:
        if "not named" in measured["note"]:  # the figure may be of another build
            continue
        expected = recipe["expected_tok_s"][str(measured["tp"])]
        # Short prompts are a little faster than the 1,024 tokens of context that are assumed.
        assert expected["low"] <= measured["decode_tok_s"] <= 1.02 * expected["high"], recipe[
            "name"
        ]


def test_a_toy_gets_no_speed_of_a_spark(ask):
    (line,) = (line for line in ask("recipes", "list").stdout.splitlines() if "lab-paris" in line)
    assert "not predicted" in line


def test_the_list_as_json(ask):
    found = {r["name"]: r for r in json.loads(ask("recipes", "list", "--json").stdout)["recipes"]}
    one = found["gemma4-31b-fp8"]
    assert one["valid"] is True
    assert one["own"] is False
    assert one["tensor_parallel"] == {"min": 1, "max": 4, "default": 2}
    assert [(m["tp"], m["decode_tok_s"]) for m in one["measured_tok_s"]] == [(1, 6.93), (2, 11.2)]
    assert one["quantization"] == "fp8-online"


def test_a_broken_recipe_of_the_user_does_not_break_the_list(ask, recipes):
    (recipes / "mine.yaml").write_text(OWN.format(name="mine"))
    (recipes / "bad.yaml").write_text(OWN.format(name="bad") + "engin_args: {}\n")
    (recipes / "worse.yaml").write_bytes(b"\xff\xfe\x00")
    said = ask("recipes", "list").stdout
    assert "mine (yours)" in said
    assert "invalid" in said
    assert "bad.yaml:4: engin_args: unknown field; did you mean 'engine_args'?" in said
    found = {r["name"]: r for r in json.loads(ask("recipes", "list", "--json").stdout)["recipes"]}
    assert found["mine"]["own"] is True
    assert found["worse"]["valid"] is False
    assert found["bad"]["error"]["where"].endswith("bad.yaml:4")
    assert found["gemma4-31b-nvfp4"]["valid"] is True


def test_own_recipes_hide_ours(ask, recipes):
    (recipes / "gemma4-31b-nvfp4.yaml").write_text(OWN.format(name="gemma4-31b-nvfp4"))
    found = {r["name"]: r for r in json.loads(ask("recipes", "list", "--json").stdout)["recipes"]}
    assert found["gemma4-31b-nvfp4"]["model"] == "org/m"


def test_show_as_json(ask):
    told = json.loads(ask("recipes", "show", "gemma4-31b-nvfp4", "--json").stdout)
    assert told["command"][:3] == ["vllm", "serve", "nvidia/Gemma-4-31B-IT-NVFP4"]
    assert told["recipe"]["readiness"]["rungs"][0] == "answer"
    assert told["tp"] == 1


def test_headlines_are_one_for_each_source_and_size(tmp_path):
    recipe = load_recipe("gemma4-26b-a4b-fp8", Project(tmp_path))
    assert [m.decode_tok_s for m in headlines(recipe)] == [36.9, 35]
    recipe = load_recipe("gemma4-26b-a4b-nvfp4", Project(tmp_path))
    assert [m.decode_tok_s for m in headlines(recipe)] == [51.6, 48.2], "not of three requests"


def test_expected_speeds_of_every_shipped_model(ask):
    found = json.loads(ask("recipes", "list", "--json").stdout)["recipes"]
    for recipe in found:
        sizes = TensorParallel(**recipe["tensor_parallel"]).usual
        speeds = recipe["expected_tok_s"]
        # A toy on a CPU: nothing here was fitted to its like. An embedding model generates nothing.
        if recipe["name"] in {"lab-paris", "qwen3-embedding-0.6b"}:
            assert speeds == {}
            continue
        assert set(speeds) == {str(tp) for tp in sizes}, recipe["name"]
        assert all(s["low"] <= s["expected"] <= s["high"] for s in speeds.values())
    assert 6 < next(r for r in found if r["name"] == "gemma4-31b-nvfp4")["expected_tok_s"]["1"][
        "expected"
    ] < 8  # fmt: skip


def test_a_model_that_no_one_knows_has_no_expected_speed(ask, recipes):
    (recipes / "mine.yaml").write_text(OWN.format(name="mine"))
    found = json.loads(ask("recipes", "show", "mine", "--json").stdout)
    assert found["expected_tok_s"] == {}
    assert "expected" not in ask("recipes", "show", "mine").stdout
