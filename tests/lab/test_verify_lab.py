"""`verify` on real vLLM: tool calls and reasoning pass through vLLM's own parsers."""

import shutil
import sys
from collections.abc import Iterator
from typing import Any

import lab_recipes
import pytest
from commandline import CommandLine

from spark_cluster.engine import readiness_checks
from spark_cluster_lab import Lab
from spark_cluster_lab.tools_model import MODEL, tools_model

pytestmark = [pytest.mark.lab, pytest.mark.soak]

NAME = "lab-tools"
PARSERS = {
    "enable-auto-tool-choice": True,
    "tool-call-parser": "hermes",
    "reasoning-parser": "deepseek_r1",
}
CANNOT = {"vision-colour", "vision-scene"}


def recipe() -> dict[str, Any]:
    """The lab's recipe with the model of tools."""
    made = lab_recipes.shipped(name=NAME, model=lab_recipes.model(MODEL))
    made["engine_args"] |= PARSERS
    made["probe"]["max_tokens"] = 16
    made["readiness"]["toy"] = False
    return made


@pytest.fixture(scope="module")
def user(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    made = CommandLine(tmp_path_factory.mktemp("verify"))
    artefact = tools_model(lab.layout, lab.prepared())
    artefact.make(lambda text: print(text, file=sys.stderr))  # minutes, where it is not there yet
    shutil.copytree(artefact.path / MODEL, made.home / "recipes" / MODEL)
    lab_recipes.write(made, recipe())
    made("down")
    made("up", "--tp", "1", "--recipe", NAME)
    yield made
    made("down")


def test_every_check_holds_but_for_pictures(user):
    document = user.json("verify")
    found = {check["id"]: check["status"] for check in document["checks"]}
    assert set(found) == {check.id for check in readiness_checks.of_kind("chat")}
    assert {check for check, status in found.items() if status == "not applicable"} == CANNOT
    assert {status for check, status in found.items() if check not in CANNOT} == {"ok"}
    assert (document["ok"], document["tp"], document["recipe"]) == (True, 1, NAME)


def test_two_nodes_give_the_answers_of_one(user):
    user("up", "--tp", "2", "--recipe", NAME)
    document = user.json("verify", "--only", "short_answers", "--only", "tool_use")
    assert document["ok"]
    (size,) = document["other_sizes"]
    assert (size["tp"], size["different"]) == (1, [])
    assert "short-answers" in size["same"]
