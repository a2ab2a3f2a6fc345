"""The lab's recipe as data: as it is shipped, and with the embedding model (`word_model`)."""

import json
from typing import Any

import word_model
from commandline import LAB_RECIPE, CommandLine
from ruamel.yaml import YAML

WORDS = "lab-words"
BASE_IMAGE = """\
def main(play):
    image = Image("spark-vllm:lab", archive="/srv/images/spark-vllm.tar")
    play.apply(play.nodes, "network", "containers", [image])
"""
"""A playbook after which an image can be built on the nodes, whose fabric has its addresses."""


def shipped(**changed: Any) -> dict[str, Any]:
    """Return it; `changed` are keys that replace its own."""
    found: dict[str, Any] = YAML(typ="safe").load(LAB_RECIPE.read_text())
    return {**found, **changed}


def words(kind: str, **changed: Any) -> dict[str, Any]:
    """Return it with the embedding model, as one of a kind; `changed` replaces its own keys."""
    data = shipped(name=WORDS, kind=kind, readiness={})
    del data["probe"]
    data["engine_args"] |= {"runner": "pooling", "max-model-len": word_model.CONTEXT}
    data["model"] = model("words")
    return {**data, **changed}


def model(name: str) -> dict[str, Any]:
    """Return the part of a recipe for a model whose folder is next to it."""
    path = f"/srv/models/{name}"
    return {
        "name": name, "source": "directory", "directory": name, "path": path, "served_name": name,
    }  # fmt: skip


def write(user: CommandLine, recipe: dict[str, Any]) -> None:
    """Give it to a user, by its name."""
    (user.home / f"recipes/{recipe['name']}.yaml").write_text(json.dumps(recipe))  # is YAML too
