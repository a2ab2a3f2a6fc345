"""Access to this machine and to the nodes that a recipe has only with the user's permission."""

import json
from pathlib import Path

import pytest
from cases import each_row
from factories import read_inventory
from program import invoke

from spark_cluster.config.extension import NOTHING, Allowances
from spark_cluster.config.project import Project
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_settings import must_be_allowed, secrets_of_laptop
from spark_cluster.config.recipes import load_recipe
from spark_cluster.errors import Refused, Unreachable, UsageError

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


def test_a_variable_of_this_machine_is_not_given_unasked(folder):
    with pytest.raises(Refused, match=rf"variable {NAME} of this machine .*\(env\.X\)") as e:
        must_be_allowed(recipe(folder, ENV))
    assert f"--allow-env {NAME}" in e.value.hint
    assert "`allow_env` under serve in the inventory" in e.value.hint
    with pytest.raises(Refused):
        secrets_of_laptop(recipe(folder, ENV, Allowances(env=("AWS_SECRET_ACCESS",))))


VENV = "runtime: venv\nvenv: {path: /opt/engine, requirements: [vllm==0.32.0]}\n"


def test_a_recipe_runs_outside_a_container_only_when_that_is_allowed(folder):
    """A virtual environment's packages run as root on the node itself."""
    text = "\n".join(line for line in TEXT.splitlines() if not line.startswith("image:"))
    (folder / "recipes/r.yaml").write_text(f"{text}\n{VENV}")
    with pytest.raises(Refused, match="outside a container, as root on the nodes") as e:
        must_be_allowed(load_recipe("r", Project(folder)))
    assert "--allow-venv" in e.value.hint
    must_be_allowed(load_recipe("r", Project(folder), Allowances(venv=True)))
    done = invoke("up", "--recipe", "r", "--tp", "1", "--check")
    assert isinstance(done.exception, Refused)
    assert "--allow-venv" in done.exception.hint
    given = invoke("up", "--recipe", "r", "--tp", "1", "--check", "--allow-venv")
    assert isinstance(given.exception, Unreachable), "it is allowed, and the node is not there"
    assert (Allowances(venv=True) + NOTHING).venv
    assert (NOTHING + Allowances(venv=True)).venv


@each_row(__file__, "allowances.toml", "an_unset_variable_of_a_shell_allows_nothing")
@pytest.mark.parametrize("command", [("lint", "r"), ("plan", "r", "--offline"), ("up",)])
def test_an_unset_variable_of_a_shell_allows_nothing(folder, command, option, value, expected):
    recipe(folder, "")
    done = invoke(*command, option, value)
    assert isinstance(done.exception, UsageError), done.output
    assert expected in str(done.exception)
    assert option in str(done.exception)


def test_the_user_may_allow_it(folder):
    asks = recipe(folder, ENV, Allowances(env=(NAME,)))
    must_be_allowed(asks)
    assert secrets_of_laptop(asks) == {"X": "hunter2"}


def test_the_inventory_may_allow_it(folder):
    (folder / "inventory.yaml").write_text(INVENTORY + f"serve: {{allow_env: [{NAME}]}}\n")
    assert read_inventory(folder / "inventory.yaml").serve.allow_env == [NAME]
    recipe(folder, ENV)
    assert not isinstance(invoke("up", "--recipe", "r").exception, Refused)
    (folder / "inventory.yaml").write_text(INVENTORY + "serve: {allow_mounts: [/nowhere]}\n")
    recipe(folder, mount("/nowhere/a"))
    assert not isinstance(invoke("up", "--recipe", "r").exception, Refused)


def test_up_refuses_and_allows(folder):
    recipe(folder, ENV)
    assert isinstance(invoke("up", "--recipe", "r").exception, Refused)
    done = invoke("up", "--recipe", "r", "--allow-env", NAME)
    assert not isinstance(done.exception, Refused)


@pytest.mark.parametrize("value", ["hunter2", ""])
def test_lint_lists_the_variables_and_reads_none(folder, monkeypatch, value):
    monkeypatch.setenv(NAME, value)
    recipe(folder, ENV)
    done = invoke("lint", "r")
    assert f"needs the variable {NAME} of this machine" in done.output
    assert "--allow-env" in done.output
    assert "--allow-env" not in invoke("lint", "r", "--allow-env", NAME).output
    assert json.loads(invoke("--json", "lint", "r").output)["variables"] == [NAME]
    plan = invoke("plan", "r", "--offline")
    assert f"--allow-env {NAME}" in " ".join(plan.output.split())
    assert "hunter2" not in done.output + plan.output


def mount(source: str, *, read_only: bool = False) -> str:
    return f"mounts: [{{source: {source}, target: /x, read_only: {str(read_only).lower()}}}]\n"


WRITES = {
    "mounts[0].source": (TEXT, mount("/nowhere/a")),
    "model.path": (TEXT.replace("served_name: m", "served_name: m, path: /nowhere/a"), ""),
    "drafter.path": (TEXT, "drafter: {method: mtp, path: /nowhere/a, tokens: 1}\n"),
}


@pytest.mark.parametrize("key", WRITES)
def test_a_recipe_writes_only_to_folders_that_were_named(folder, key):
    text, more = WRITES[key]
    (folder / "recipes/r.yaml").write_text(text + more)
    with pytest.raises(Refused, match=r"wants to write to /nowhere/a of the nodes") as e:
        must_be_allowed(load_recipe("r", Project(folder)))
    assert f"({key})" in e.value.message
    assert "--allow-mount /nowhere/a" in e.value.hint
    assert "`allow_mounts` under serve in the inventory" in e.value.hint
    for allowed in ("/nowhere/a", "/nowhere"):
        must_be_allowed(load_recipe("r", Project(folder), Allowances(mounts=(allowed,))))


def test_what_is_only_read_and_a_model_in_its_folder_need_no_leave(folder):
    must_be_allowed(recipe(folder, mount("/nowhere/a", read_only=True)))
    text = TEXT.replace("served_name: m", "served_name: m, path: /srv/models/m")
    (folder / "recipes/r.yaml").write_text(text)
    must_be_allowed(load_recipe("r", Project(folder)))


def test_what_ships_needs_no_leave(folder):
    project = Project(folder)
    for name in project.list("recipes"):
        must_be_allowed(load_recipe(name, project))
