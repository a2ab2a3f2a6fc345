"""`recipes update`, `recipes search` and `@REGISTRY/RECIPE`, as people and programs see them."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from cases import each_row
from factories import put
from jsonschema import Draft202012Validator
from program import invoke
from registry_samples import Repository, name_registry, ours, repository, sparkrun

from docs.generate.schemas import output
from spark_cluster.config.project import Project
from spark_cluster.config.recipes import search_recipes
from spark_cluster.errors import SparkClusterError


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")
    folder = tmp_path / "project"
    (folder / "recipes").mkdir(parents=True)
    return folder


@pytest.fixture
def theirs(tmp_path: Path, project: Path) -> Repository:
    made = repository(tmp_path / "theirs")
    name_registry(project, made.url, "sparkrun")
    return made


def call(project: Path, *words: str) -> tuple[int, str]:
    """Exit status and output, or the text of the error."""
    done = invoke(*words, project=project)
    if isinstance(done.exception, SparkClusterError):
        return done.exception.exit_code, str(done.exception)
    return done.exit_code, done.output


def asked(project: Path, *words: str) -> Any:
    done = invoke(*words, "--json", project=project)
    return json.loads(done.stdout)


# --- update ----------------------------------------------------------------------------------


@pytest.fixture
def wren(theirs: Repository, project: Path) -> Repository:
    """A registry whose one recipe was taken."""
    theirs.commit(wren=sparkrun())
    status, text = call(project, "recipes", "update")
    assert status == 0
    assert "theirs: 1 recipe at " in text
    return theirs


def test_check_shows_and_takes_nothing(theirs, project):
    theirs.commit(wren=sparkrun())
    status, text = call(project, "recipes", "update", "--check")
    assert status == 0
    assert "+ wren" in text
    assert "not taken" in text
    assert not (project / "registries.lock.json").exists()


def test_a_change_is_named_and_needs_a_yes(wren, project):
    wren.commit(wren=sparkrun(length=8192), jay=sparkrun())
    status, text = call(project, "recipes", "update", "theirs")
    assert status == 0
    take = f"spark-cluster --project {project} recipes update theirs --yes"
    for line in ("+ jay", "~ wren", take):
        assert line in text
    assert "4096" in call(project, "recipes", "show", "@theirs/wren")[1]
    assert call(project, "recipes", "update", "--yes")[0] == 0
    assert "8192" in call(project, "recipes", "show", "@theirs/wren")[1]


def test_a_rewritten_branch_needs_more_than_a_yes(wren, project):
    wren.commit(amend=True, wren=sparkrun(length=8192))
    status, text = call(project, "recipes", "update", "--yes")
    assert (status, "history was rewritten" in text) == (4, True)
    assert "4096" in call(project, "recipes", "show", "@theirs/wren")[1]
    assert call(project, "recipes", "update", "--yes", "--allow-rewritten")[0] == 0
    assert "8192" in call(project, "recipes", "show", "@theirs/wren")[1]


def test_one_registry_that_fails_does_not_stop_the_others(theirs, project, tmp_path):
    theirs.commit(wren=sparkrun())
    text = (project / "registries.yaml").read_text()
    broken = f"  - {{name: broken, url: 'file://{tmp_path}/nowhere', format: sparkrun}}\n"
    put(project / "registries.yaml", text.replace("registries:\n", f"registries:\n{broken}"))
    done = asked(project, "recipes", "update")
    assert not done["ok"]
    Draft202012Validator(output("recipes-update")).validate(done)
    first, second = done["registries"]
    assert "failed" in first["error"]["message"]
    assert (second["in_use"], second["added"]) == (True, ["wren"])


def test_control_characters_of_a_registry_are_not_printed(theirs, project):
    theirs.commit_files({"red\x1b[31m.yaml": sparkrun(), "wren": sparkrun()})
    theirs.commit_files(
        {"bad.yaml": 'model: "\\e[31m"\ncommand: "\\e[31m vllm"\nruntime: "\\e[2J"\n'}
    )
    _, text = call(project, "recipes", "update", "--verbose")
    assert "wren" in text
    assert "\x1b" not in text


# --- references ------------------------------------------------------------------------------


def test_a_reference_is_planned_linted_and_imported(wren, project):
    status, text = call(project, "plan", "@theirs/wren", "--offline")
    assert (status, "fits" in text) == (0, True), text
    assert call(project, "lint", "@theirs/wren")[0] == 0
    done = asked(project, "recipes", "import", "@theirs/wren")
    assert (done["name"], done["kind"]) == ("wren", "sparkrun recipe")
    written = (project / "recipes/wren.yaml").read_text()
    assert wren.url in written
    assert wren.git("rev-parse", "HEAD")[:12] in written


def test_a_recipe_of_a_registry_is_not_changed(wren, project):
    (cached,) = (project.parent / "cache").rglob("recipes/wren.yaml")
    before = cached.read_bytes()
    status, text = call(project, "lint", "@theirs/wren", "--fix")
    assert (status, "recipes import" in text) == (2, True)
    assert cached.read_bytes() == before


def test_a_recipe_of_ours_is_imported_under_another_name(theirs, project):
    name_registry(project, theirs.url)
    theirs.commit(wren=ours("wren") + "# a comment\n")
    call(project, "recipes", "update")
    assert asked(project, "recipes", "import", "@theirs/wren", "--name", "own")["ok"]
    text = (project / "recipes/own.yaml").read_text()
    assert "name: own" in text
    assert "# a comment" in text
    status, text = call(project, "recipes", "import", "@theirs/wren", "--image", "x:1")
    assert status == 2
    assert "other tools" in text


@pytest.mark.parametrize("command", ["plan --offline", "recipes show", "recipes import"])
def test_a_reference_that_is_not_there_says_what_there_is(wren, project, command):
    status, text = call(project, *command.split(), "@theirs/wrenn")
    assert (status, "did you mean 'wren'?" in text) == (2, True)


# --- search ----------------------------------------------------------------------------------


def names(project: Path, *words: str) -> list[str]:
    return [one.reference for one in search_recipes(words, Project(project))]


def test_all_words_must_occur_and_names_come_first(project):
    found = names(project, "gemma", "31b", "nvfp4")
    assert set(found) == {"gemma4-31b-nvfp4", "gemma4-31b-nvfp4-text"}
    assert names(project, "gpt", "oss") == names(project, "GPT-OSS")
    assert names(project, "gptoss")[:2] == ["gpt-oss-120b", "gpt-oss-20b"]
    assert names(project, "no", "such", "recipe") == []


@each_row(__file__, "recipe_registries.toml", "tags_models_and_descriptions_are_searched")
def test_tags_models_and_descriptions_are_searched(project, words, wanted):
    assert wanted in names(project, *words)


def test_registries_and_own_recipes_are_found(theirs, project):
    theirs.commit(wren=sparkrun(), bad="model: 3\ncommand: x\n")
    call(project, "recipes", "update")
    put(project / "recipes/wren-own.yaml", ours("wren-own"))
    put(project / "recipes/wren-wrong.yaml", "name: 3")
    done = asked(project, "recipes", "search", "wren")
    Draft202012Validator(output("recipes-search")).validate(done)
    origins = {one["recipe"]: one["origin"] for one in done["recipes"]}
    assert origins == {"wren-own": "yours", "wren-wrong": "yours", "@theirs/wren": "registry"}
    by_name = {one["recipe"]: one for one in done["recipes"]}
    assert by_name["@theirs/wren"]["verdicts"]["1"]["feasible"] is True
    assert by_name["@theirs/wren"]["verdicts"]["1"]["decode_tok_s"]["low"] > 0
    assert by_name["wren-wrong"]["verdicts"]["1"]["feasible"] is None


def test_the_answer_has_a_verdict_for_each_size_and_a_limit(project):
    status, text = call(project, "recipes", "search", "llama", "fp8")
    assert status == 0
    assert re.search(r"one Spark: yes, \d+ to \d+ tok/s", text)
    assert "two Sparks: yes" in text
    status, text = call(project, "recipes", "search", "--limit", "1")
    assert " more: --limit " in text
    assert call(project, "recipes", "search", "zzz")[0] == 0


def test_what_is_to_be_updated_is_said_with_the_project(project):
    assert (
        f"`spark-cluster --project {project} recipes update`"
        in call(project, "recipes", "search", "nothing-like-it")[1]
    )
