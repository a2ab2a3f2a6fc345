"""`verify` on real vLLM: tool calls and reasoning pass through vLLM's own parsers."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from commandline import CommandLine
from ruamel.yaml import YAML

from spark_cluster.engine import readiness_checks
from spark_cluster_lab import Lab
from spark_cluster_lab.tools_model import MODEL, tools_model

pytestmark = [pytest.mark.lab, pytest.mark.soak]

NAME = "lab-tools"
SHIPPED = Path(__file__).parents[2] / "recipes/lab-paris.yaml"
PARSERS = {
    "enable-auto-tool-choice": True,
    "tool-call-parser": "hermes",
    "reasoning-parser": "deepseek_r1",
}
CANNOT = {"vision-colour", "vision-scene"}


def recipe(**changed: Any) -> str:
    """The lab's recipe with the model of tools."""
    data: dict[str, Any] = YAML(typ="safe").load(SHIPPED.read_text())
    model = {
        "name": MODEL,
        "source": "directory",
        "directory": MODEL,
        "path": f"/srv/models/{MODEL}",
        "served_name": MODEL,
    }
    flags = {**data["engine_args"], **PARSERS}
    probe = {**data["probe"], "max_tokens": 16}
    readiness = {**data["readiness"], "toy": False}
    made = {**data, "name": NAME, "model": model, "engine_args": flags, "probe": probe}
    made["readiness"] = readiness
    return json.dumps({**made, **changed})


@pytest.fixture(scope="module")
def user(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    made = CommandLine(tmp_path_factory.mktemp("verify"))
    artefact = tools_model(lab.layout, lab.prepared())
    artefact.make(lambda text: print(text, file=sys.stderr))  # minutes, where it is not there yet
    shutil.copytree(artefact.path / MODEL, made.home / "recipes" / MODEL)
    (made.home / f"recipes/{NAME}.yaml").write_text(recipe())
    made("down")
    made("up", "--tp", "1", "--recipe", NAME)
    yield made
    made("down")


def test_every_check_holds_but_for_pictures(user: CommandLine) -> None:
    document = user.json("verify")
    found = {check["id"]: check["status"] for check in document["checks"]}
    assert set(found) == {check.id for check in readiness_checks.of_kind("chat")}
    assert {check for check, status in found.items() if status == "not applicable"} == CANNOT
    assert {status for check, status in found.items() if check not in CANNOT} == {"ok"}
    assert (document["ok"], document["tp"], document["recipe"]) == (True, 1, NAME)


def test_what_the_recipe_promises_must_hold(user: CommandLine) -> None:
    """The recipe may change while the server runs: the promise is the recipe's."""
    promised = recipe(readiness={"rungs": ["answer", "vision"]})
    (user.home / f"recipes/{NAME}.yaml").write_text(promised)
    ran = user("verify", "--only", "vision", status=5)
    assert "is not a multimodal model" in ran.out
    assert "asked" in ran.out
    (user.home / f"recipes/{NAME}.yaml").write_text(recipe())


def test_two_nodes_give_the_answers_of_one(user: CommandLine) -> None:
    user("up", "--tp", "2", "--recipe", NAME)
    document = user.json("verify", "--only", "short_answers", "--only", "tool_use")
    assert document["ok"]
    (size,) = document["other_sizes"]
    assert (size["tp"], size["different"]) == (1, [])
    assert "short-answers" in size["same"]


def test_a_server_that_is_stopped(user: CommandLine) -> None:
    user("down")
    ran = user("verify", status=1)
    assert "nothing serves" in ran.err
    assert "spark-cluster up" in ran.err
