"""What a recipe may have of this machine and of the nodes only when the user says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from spark_cluster.allowances import NOTHING, Allowances
from spark_cluster.cli import cli
from spark_cluster.errors import Refused
from spark_cluster.inventory import read_inventory
from spark_cluster.laptop_files import must_be_allowed
from spark_cluster.project import Project
from spark_cluster.recipe import Recipe, load_recipe
from spark_cluster.serving.secret_env import secrets_of_laptop

TEXT = """\
name: r
model: {name: google/gemma-4-31B-it, served_name: m}
image: {ref: "repo/image:1"}
"""
ENV = "env: {X: {env: AWS_SECRET_ACCESS_KEY}, PLAIN: '1'}\n"
NAME = "AWS_SECRET_ACCESS_KEY"
INVENTORY = "nodes: {a: {address: 127.0.0.1, port: 1}}\n"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "recipes").mkdir()
    (tmp_path / "inventory.yaml").write_text(INVENTORY)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(NAME, "hunter2")
    return tmp_path


def recipe(folder: Path, more: str, allow: Allowances = NOTHING) -> Recipe:
    (folder / "recipes/r.yaml").write_text(TEXT + more)
    return load_recipe("r", Project(folder), allow)


def run(*words: str) -> Result:
    return CliRunner().invoke(cli, list(words))


def test_a_variable_of_this_machine_is_not_given_unasked(folder: Path) -> None:
    with pytest.raises(Refused, match=rf"variable {NAME} of this machine .*\(env\.X\)") as e:
        must_be_allowed(recipe(folder, ENV))
    assert f"--allow-env {NAME}" in e.value.hint
    assert "`allow_env` under serve in the inventory" in e.value.hint
    with pytest.raises(Refused):
        secrets_of_laptop(recipe(folder, ENV, Allowances(env=("AWS_SECRET_ACCESS",))))


def test_the_user_may_allow_it(folder: Path) -> None:
    asks = recipe(folder, ENV, Allowances(env=(NAME,)))
    must_be_allowed(asks)
    assert secrets_of_laptop(asks) == {"X": "hunter2"}


def test_the_inventory_may_allow_it(folder: Path) -> None:
    (folder / "inventory.yaml").write_text(INVENTORY + f"serve: {{allow_env: [{NAME}]}}\n")
    assert read_inventory(folder / "inventory.yaml").serve.allow_env == [NAME]
    recipe(folder, ENV)
    assert not isinstance(run("up", "--recipe", "r").exception, Refused)


def test_up_refuses_and_allows(folder: Path) -> None:
    recipe(folder, ENV)
    assert isinstance(run("up", "--recipe", "r").exception, Refused)
    done = run("up", "--recipe", "r", "--allow-env", NAME)
    assert not isinstance(done.exception, Refused)


@pytest.mark.parametrize("value", ["hunter2", ""])
def test_lint_lists_the_variables_and_reads_none(
    folder: Path, monkeypatch: pytest.MonkeyPatch, value: str
) -> None:
    monkeypatch.setenv(NAME, value)
    recipe(folder, ENV)
    done = run("lint", "r")
    assert f"asks for {NAME} of this machine" in done.output
    assert "--allow-env" in done.output
    assert "--allow-env" not in run("lint", "r", "--allow-env", NAME).output
    assert json.loads(run("--json", "lint", "r").output)["variables"] == [NAME]
    plan = run("plan", "r", "--offline")
    assert f"--allow-env {NAME}" in " ".join(plan.output.split())
    assert "hunter2" not in done.output + plan.output
