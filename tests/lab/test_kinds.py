"""Models that are no chat models, on real vLLM: what verifies them, and what a wrong kind says."""

from typing import Any

import lab_recipes
import pytest
import word_model
from commandline import CommandLine
from lab_recipes import WORDS

pytestmark = pytest.mark.lab

UP = ("up", "--tp", "1", "--recipe", WORDS)


@pytest.fixture(scope="module")
def user(user: CommandLine) -> CommandLine:
    word_model.write(user.home / "recipes/words")
    return user


def write(user: CommandLine, kind: str, **changed: Any) -> None:
    lab_recipes.write(user, lab_recipes.words(kind, **changed))


def test_an_embedding_model_is_verified_by_its_vectors(user):
    write(user, "embedding")
    document = user.json(*UP)
    assert (document["kind"], document["verified"]) == ("embedding", ["embedding"])
    assert document["answer"].startswith(f"{word_model.HIDDEN} numbers; cosine 0.")
    found = user.json("status")
    assert (found["state"], found["kind"], found["problems"]) == ("serving", "embedding", [])
    assert user.json(*UP)["changed"] == 0


@pytest.mark.soak
def test_the_same_model_reranks_by_cosine(user):
    write(user, "reranking")
    document = user.json(*UP)
    assert (document["kind"], document["verified"]) == ("reranking", ["reranking"])
    assert "relevant 0." in document["answer"]
    assert user.json("status")["kind"] == "reranking"


CHAT = {key: lab_recipes.shipped()[key] for key in ("model", "engine_args")}


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "model", "said"),
    [
        ("chat", {}, "/health is fine, but"),
        ("transcription", {}, "transcription: "),
        ("embedding", CHAT, "/v1/embeddings"),
    ],
)
def test_a_model_of_another_kind_says_so(user, kind, model, said):
    write(user, kind, **model)
    assert said in user(*UP, "--force", status=5).err
