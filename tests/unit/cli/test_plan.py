"""`plan` as a user runs it, without nodes: screen, JSON, exit status, and mistakes."""

import functools
import json
from pathlib import Path

import pytest
from cases import cases
from factories import put
from program import invoke

from spark_cluster.config.project import Project
from spark_cluster.errors import InvalidFile, SparkClusterError

SHIPPED = set(Project(Path(__file__).parents[3]).list("recipes"))
RECIPES = sorted(SHIPPED)


def run(*words, project=None):
    return invoke("plan", *words, project=project, catch_exceptions=False)


def document(*words, **options):
    return json.loads(run(*words, "--offline", "--json", **options).stdout)


def told(*words):
    result = invoke(*words, "--json")
    assert result.exit_code == 0, (result.output, result.exception)
    return json.loads(result.stdout)


@functools.cache
def listed():
    """The speeds that `recipes list` tells, by recipe and nodes."""
    return {one["name"]: one["expected_tok_s"] for one in told("recipes", "list")["recipes"]}


def is_told_everywhere(speed, name, tp):
    alone = told("predict", "speed", "--recipe", name, "--tp", tp)
    return listed()[name][tp] == speed == (alone["speculative"] or alone)["decode_tok_s"]


@pytest.mark.parametrize("name", RECIPES)
@pytest.mark.parametrize("tp", ["1", "2"])
def test_every_recipe_has_a_plan_and_one_speed_whichever_command_tells_it(name, tp):
    found = document(name, "--tp", tp)
    assert found["recipe"] == name
    speed = found["decode_tok_s"]
    if speed is None:
        assert not found["fits"] or "embedding" in name, "what does not fit gets no speed"
    else:
        assert 0 < speed["low"] <= speed["expected"] <= speed["high"]
    assert tp not in listed()[name] or is_told_everywhere(speed, name, tp)
    assert found["fits"] is not bool(found["reasons"])
    assert [node["name"] for node in found["nodes"]] == ["spark1", "spark2"][: int(tp)]
    if not found["fits"]:
        assert "is known to run with --tp" in found["reasons"][0], "they fit an idle Spark"
        assert found["nearest"]


def test_four_nodes_have_one_speed_whichever_command_tells_it():
    of_four = [name for name, speeds in listed().items() if "4" in speeds]
    assert of_four
    for name in of_four:
        assert is_told_everywhere(document(name, "--tp", "4")["decode_tok_s"], name, "4")


def test_the_picture_is_read_without_colours_and_as_large_as_its_figures():
    lines = run("gemma4-31b-fp8", "--offline", "--tp", "2").output.splitlines()
    bars = [line for line in lines if line.startswith("spark")]
    legend = next(line for line in lines if "in use now" in line)
    for bar in bars:
        drawn = bar.split("GiB", 1)[1].strip()
        assert len(drawn) == 48
        for part in legend.split("  "):
            brick, gib = part.strip()[:1], part.split()[-1:]
            if gib:
                assert drawn.count(brick) == pytest.approx(float(gib[0]) / 121.7 * 48, abs=1)


def test_no_go():
    result = run("gemma4-31b-fp8", "--offline", "--tp", "1", "--available", "60")
    assert result.exit_code == 4
    assert "58.8 GiB while loading, and 60.0 are available, of which" in result.output
    assert "would work: --tp 2" in result.output
    assert "cannot work" in result.output


def test_a_model_of_the_hub_is_planned_as_it_is_served_without_options():
    found = document("nvidia/Llama-3.3-70B-Instruct-FP4")
    assert found == document("--command", "vllm serve nvidia/Llama-3.3-70B-Instruct-FP4")
    assert found["feasible"] is True
    with pytest.raises(InvalidFile, match="no such recipe"):
        run("tests/none")


def test_a_models_own_config_comes_first(tmp_path):
    put(
        tmp_path / "recipes/own.yaml",
        "name: own\nmodel: {name: own, served_name: own, source: directory, directory: ../m}\n"
        "image: {ref: 'x:1'}\n",
    )
    with pytest.raises(SparkClusterError):
        run("own", "--offline", project=tmp_path)
    config = put(tmp_path / "m/config.json", "{")
    with pytest.raises(InvalidFile):
        run("own", "--offline", project=tmp_path)
    put(config, json.dumps(cases(__file__, "predict.json")["llama-8b"]))
    assert document("own", project=tmp_path)["weights_gib"] == pytest.approx(14.99, abs=0.02)
