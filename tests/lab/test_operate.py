"""`swap` there and back, and the way back from one that fails; on real Docker and real vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from commandline import CommandLine, processes

pytestmark = pytest.mark.lab

SHIPPED = Path(__file__).parents[2] / "recipes/lab-paris.yaml"
OTHER, WRONG = "lab-paris-short", "lab-paris-wrong"


@pytest.fixture(scope="module")
def user(lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """A user with two more recipes: a shorter context, and one that expects a wrong answer."""
    made = CommandLine(tmp_path_factory.mktemp("operate"))
    (made.home / "recipes").mkdir()
    for name, old, new in (
        (OTHER, "max-model-len: 4096", "max-model-len: 1024"),
        (WRONG, "expect: Paris", "expect: Berlin"),
    ):
        text = SHIPPED.read_text().replace("name: lab-paris", f"name: {name}")
        assert old in text
        (made.home / f"recipes/{name}.yaml").write_text(text.replace(old, new))
    yield made
    made("down")


@pytest.fixture(scope="module")
def serving(user) -> CommandLine:
    """The shipped recipe serves, at TP=1; what another file has left up is taken as it is."""
    user("up", "--tp", "1", "--recipe", "lab-paris")
    return user


def test_there(serving):
    document = serving.json("swap", OTHER, "--tp", "1")
    assert document["former"] == {"recipe": "lab-paris", "tp": 1, "overrides": ""}
    assert "Paris" in document["answer"]
    assert not any(node["processes"] for node in document["released"]), "the memory was back"
    assert {"fetch", "stop", "prove", "start", "load", "verify"} <= document["seconds"].keys()
    assert document["down_s"] > document["seconds"]["load"]


def test_check_changes_nothing(serving):
    document = serving.json("swap", "lab-paris", "--tp", "1", "--check")
    assert document["changed"] > 0
    assert serving.json("status")["state"] == "serving"


def test_one_that_fails_ends_in_the_old_one(serving):
    ran = serving("swap", WRONG, "--tp", "1", status=5)
    assert "expected 'Berlin'" in ran.printed
    assert f"{OTHER} (tp 1) was started again, is verified, and serves" in ran.printed
    assert serving.json("status")["state"] == "serving"
    assert "swap lab-paris-wrong --tp 1" in serving("history").printed


def test_back(serving):
    ran = serving("swap", "lab-paris", "--tp", "1")
    assert f"in place of {OTHER} (tp 1)" in ran.printed
    held = processes(serving.json("vram"))
    assert [name for name, found in held.items() if found] == ["spark1"]
