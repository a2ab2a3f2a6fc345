"""The runtime of a recipe: an image, or a virtual environment."""

from __future__ import annotations

from pathlib import Path

import pytest
from cases import cases

from spark_cluster.config.launch import of_recipe
from spark_cluster.config.project import Project
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipes import load_recipe
from spark_cluster.errors import InvalidFile

BASE = "name: r\nmodel: {name: org/m, served_name: m}\n"
VENV = BASE + "runtime: venv\nvenv: {path: /opt/vllm, requirements: [vllm==0.32.0]}\n"
CASES = cases(__file__, "recipe_runtime.toml", VENV=VENV.rstrip(), BASE=BASE.rstrip())


def load(folder: Path, text: str) -> Recipe:
    path = folder / "r.yaml"
    path.write_text(text)
    return load_recipe(path, Project(folder))


def test_a_virtual_environment(tmp_path: Path) -> None:
    recipe = load(tmp_path, VENV)
    assert recipe.venv is not None
    assert (recipe.venv.path, recipe.venv.python) == ("/opt/vllm", "python3")
    assert of_recipe(recipe, 1).image == ""


@pytest.mark.parametrize("case", CASES["wrong"], ids=lambda case: case["expected"])
def test_wrong_recipes(tmp_path: Path, case: dict[str, str]) -> None:
    with pytest.raises(InvalidFile) as caught:
        load(tmp_path, case["text"])
    assert str(caught.value).partition(": ")[2] == case["expected"]


def test_a_folder_of_the_system_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match=r"found /etc/x, where nothing may be written"):
        load(tmp_path, VENV.replace("/opt/vllm", "/etc/x"))
