"""The runtime of a recipe: an image, or a virtual environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_cluster.config.launch import of_recipe
from spark_cluster.config.project import Project
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipes import load_recipe
from spark_cluster.errors import InvalidFile

BASE = "name: r\nmodel: {name: org/m, served_name: m}\n"
VENV = BASE + "runtime: venv\nvenv: {path: /opt/vllm, requirements: [vllm==0.32.0]}\n"


def load(folder: Path, text: str) -> Recipe:
    path = folder / "r.yaml"
    path.write_text(text)
    return load_recipe(path, Project(folder))


def test_a_virtual_environment(tmp_path: Path) -> None:
    recipe = load(tmp_path, VENV)
    assert recipe.venv is not None
    assert (recipe.venv.path, recipe.venv.python) == ("/opt/vllm", "python3")
    assert of_recipe(recipe, 1).image == ""


WRONG = [
    (BASE, "image: missing; expected the container image"),
    (BASE + "runtime: venv\n",
     "venv: missing; expected the virtual environment, `venv: {path: ...}`"),
    (BASE + "image: {ref: a}\nvenv: {path: /opt/vllm}\n",
     "venv: found an environment, expected `runtime: venv` with it"),
    (VENV + "image: {ref: a}\n",
     "image: found an image, expected none: `runtime: venv` has no container"),
    (VENV + "patches: [{file: a.py, target: /x/a.py, why: w}]\n",
     "patches: found patches of an image, expected none: change the files in the environment"),
    (VENV.replace("vllm==0.32.0", "vllm"),
     "venv.requirements: found 'vllm', expected NAME==VERSION or NAME @ URL"),
    (VENV.replace("/opt/vllm", "opt/vllm"),
     "venv.path: found 'opt/vllm', expected an absolute path on the node such as /srv/x"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), WRONG, ids=[e for _, e in WRONG])
def test_wrong_recipes(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(InvalidFile) as caught:
        load(tmp_path, text)
    assert str(caught.value).partition(": ")[2] == expected


def test_a_folder_of_the_system_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidFile, match=r"found /etc/x, where nothing may be written"):
        load(tmp_path, VENV.replace("/opt/vllm", "/etc/x"))
