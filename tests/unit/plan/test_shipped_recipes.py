"""The shapes that shipped recipes rest on, and the verdict on each recipe without a network."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_cluster.config.project import Project
from spark_cluster.config.recipes import load_recipe
from spark_cluster.models.lookup import find
from spark_cluster.models.weights import memory_bytes, parameters
from spark_cluster.plan.planner import Planner
from spark_cluster.plan.proposal import SizeVerdict, verdicts

SHIPPED = sorted(set(Project(Path(__file__).parent).list("recipes")) - {"lab-paris"})


def of(name: str) -> dict[int, SizeVerdict]:
    project = Project(Path(__file__).parent)
    recipe = load_recipe(name, project)
    found = verdicts(recipe, Planner(project), recipe.tensor_parallel.usual)
    return {verdict.tp: verdict for verdict in found}


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_recipe_works_at_every_size_that_it_names(name: str) -> None:
    recipe = load_recipe(name, Project(Path(__file__).parent))
    found = of(name)
    assert sorted(found) == list(recipe.tensor_parallel.usual)
    for verdict in found.values():
        assert verdict.feasible, verdict.reason
        assert verdict.decode is None or verdict.decode.low < verdict.decode.high


def test_a_toy_works_and_has_no_speed() -> None:
    assert {tp: (v.feasible, v.decode) for tp, v in of("lab-paris").items()} == {
        1: (True, None),
        2: (True, None),
        4: (True, None),
    }


def test_a_model_that_generates_nothing_has_no_speed() -> None:
    (verdict,) = of("qwen3-embedding-0.6b").values()
    assert (verdict.feasible, verdict.decode) == (True, None)


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


def test_experts_of_a_latent_mixture_see_narrower_vectors() -> None:
    found = find("nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4")
    assert found.experts is not None
    assert (found.experts.layers, found.experts.latent) == (40, 1024)
    assert sum(parameters(found).values()) / 1e9 == pytest.approx(120.6, abs=0.5)
    # A server showed 69.5 GiB (kubis.ai); 247 would follow from the model's own width.
    assert memory_bytes(found, "nvfp4") / 2**30 == pytest.approx(69.5, rel=0.03)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("Qwen/Qwen3-235B-A22B", 235.1),
        ("MiniMaxAI/MiniMax-M2.5", 228.7),
        ("Qwen/Qwen3-Embedding-0.6B", 0.5958),  # 595,776,512 in the header of its weights
    ],
)
def test_shapes_have_as_many_parameters_as_the_checkpoint(name: str, billions: float) -> None:
    assert sum(parameters(find(name)).values()) / 1e9 == pytest.approx(billions, rel=1e-3)


def test_weights_on_each_of_two_nodes_are_as_a_server_logged_them() -> None:
    """57.64 GiB a node (conselara.dev, notes on DGX Spark benchmarks)."""
    weights = memory_bytes(find("Qwen/Qwen3-235B-A22B"), "gptq-int4") / 2 / 2**30
    assert weights == pytest.approx(57.64, rel=0.01)
