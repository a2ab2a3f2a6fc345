"""`up` with engine arguments of the command line, and a recipe whose layers are split into stages;
on real Docker, real Ray and real vLLM."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from commandline import CommandLine

pytestmark = pytest.mark.lab

STAGED = "lab-staged"
ONE = ("up", "--tp", "1", "--recipe", "lab-paris")
SHORT = (*ONE, "--max-model-len", "1k", "-o", "max_num_seqs=2")


@pytest.fixture(scope="module")
def user(lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    """A user with a recipe in two stages."""
    made = CommandLine(tmp_path_factory.mktemp("changed"))
    (made.home / "recipes").mkdir()
    shipped = (Path(__file__).parents[2] / "recipes/lab-paris.yaml").read_text()
    staged = shipped.replace("name: lab-paris", f"name: {STAGED}")
    (made.home / f"recipes/{STAGED}.yaml").write_text(f"{staged}\npipeline_parallel: 2\n")
    made("down")
    yield made
    made("down")


def command_of(spark1) -> str:
    return spark1.run(["docker", "inspect", "--format", "{{.Config.Cmd}}", "spark-vllm"]).stdout


def test_the_server_has_them(user, spark1):
    document = user.json(*SHORT)
    assert "Paris" in document["answer"]
    assert document["overrides"] == {"max-model-len": 1000, "max-num-seqs": 2}
    assert "--max-model-len 1000" in command_of(spark1)
    assert user.json("status")["overrides"] == "-o max-model-len=1000 -o max-num-seqs=2"


def test_the_same_again_changes_nothing(user):
    assert user.json(*SHORT)["changed"] == 0


def test_without_them_it_says_what_is_different(user, spark1):
    ran = user(*ONE)
    assert "the server runs with -o max-model-len=1000 -o max-num-seqs=2" in ran.printed
    assert "--max-model-len 4096" in command_of(spark1)
    assert user.json("status")["overrides"] == ""
    assert user.json(*ONE)["changed"] == 0


def test_a_key_that_is_not_known(user):
    ran = user(*ONE, "-o", "max-num-seq=2", status=2)
    assert "did you mean 'max-num-seqs'?" in ran.printed


@pytest.mark.soak
def test_stages_on_both_nodes(user, spark1):
    """Both stages are loaded; vLLM 0.32 has no answer from stages on CPUs, by Ray or without it."""
    ran = user("up", "--tp", "1", "--recipe", STAGED, status=5)
    assert "--pipeline-parallel-size 2" in command_of(spark1)
    assert "✔ load" in ran.printed
    assert "/health is fine, but a completion is not" in ran.printed
    found = user.json("status")
    assert found["state"] != "serving"
    assert found["problems"]
