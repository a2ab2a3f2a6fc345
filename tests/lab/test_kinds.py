"""Models that are no chat models, on real vLLM: what verifies them, and what a wrong kind says."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import word_model
from commandline import CommandLine
from ruamel.yaml import YAML

pytestmark = pytest.mark.lab

NAME = "lab-words"
UP = ("up", "--tp", "1", "--recipe", NAME)
SHIPPED = Path(__file__).parents[2] / "recipes/lab-paris.yaml"


def recipe(kind: str, **changed: Any) -> dict[str, Any]:
    """The lab's recipe with the embedding model, as one of a kind."""
    data: dict[str, Any] = YAML(typ="safe").load(SHIPPED.read_text())
    del data["probe"]
    flags = {**data["engine_args"], "runner": "pooling", "max-model-len": word_model.CONTEXT}
    model = {
        "name": "words",
        "source": "directory",
        "directory": "words",
        "path": "/srv/models/words",
        "served_name": "words",
    }
    given = {"name": NAME, "kind": kind, "model": model, "engine_args": flags}
    return {**data, **given, "readiness": {}, **changed}


@pytest.fixture(scope="module")
def user(lab: object, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    made = CommandLine(tmp_path_factory.mktemp("kinds"))
    (made.home / "recipes").mkdir()
    word_model.write(made.home / "recipes/words")
    made("down")
    yield made
    made("down")


def write(user: CommandLine, kind: str, **changed: Any) -> None:
    (user.home / f"recipes/{NAME}.yaml").write_text(json.dumps(recipe(kind, **changed)))


def test_an_embedding_model_is_verified_by_its_vectors(user: CommandLine) -> None:
    write(user, "embedding")
    document = user.json(*UP)
    assert (document["kind"], document["verified"]) == ("embedding", ["embedding"])
    assert document["answer"].startswith(f"{word_model.HIDDEN} numbers; cosine 0.")
    found = user.json("status")
    assert (found["state"], found["kind"], found["problems"]) == ("serving", "embedding", [])
    assert user.json(*UP)["changed"] == 0


def test_the_same_model_reranks_by_cosine(user: CommandLine) -> None:
    write(user, "reranking")
    document = user.json(*UP)
    assert (document["kind"], document["verified"]) == ("reranking", ["reranking"])
    assert "relevant 0." in document["answer"]
    assert user.json("status")["kind"] == "reranking"


def test_a_chat_model_that_is_none_says_so(user: CommandLine) -> None:
    write(user, "chat")
    assert "kind: chat, and the flags are of embedding" in user("lint", NAME, status=1).out
    assert "/health is fine, but" in user(*UP, "--force", status=5).err


@pytest.mark.soak
def test_a_model_that_hears_nothing(user: CommandLine) -> None:
    """The message for a path that is not there is tested without vLLM too."""
    write(user, "transcription")
    assert "transcription: " in user(*UP, "--force", status=5).err


@pytest.mark.soak
def test_a_chat_model_behind_a_recipe_for_embedding(user: CommandLine) -> None:
    data: dict[str, Any] = YAML(typ="safe").load(SHIPPED.read_text())
    write(user, "embedding", model=data["model"], engine_args=data["engine_args"])
    ran = user(*UP, status=5)
    assert "embedding: " in ran.err
    assert "/v1/embeddings" in ran.err


def test_a_suite_refuses_it(user: CommandLine) -> None:
    write(user, "embedding")
    assert "is of kind embedding" in user("bench", "run", "lab", "--recipe", NAME, status=4).err
