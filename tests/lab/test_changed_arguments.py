"""`up` with engine arguments of the command line, and a recipe whose layers are split into stages;
on real Docker, real Ray and real vLLM."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from commandline import CommandLine

pytestmark = pytest.mark.lab

STAGED = "lab-staged"
ONE = ("up", "--tp", "1", "--recipe", "lab-paris")
SHORT = (*ONE, "--max-model-len", "1k", "-o", "max_num_seqs=2", "-e", "ODD=a b", "--port", "8001")
CHANGES = "-e 'ODD=a b' -o max-model-len=1000 -o max-num-seqs=2"


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
    expected = {"max-model-len": 1000, "max-num-seqs": 2, "env.ODD": "a b"}
    assert document["overrides"] == expected
    assert "--max-model-len 1000" in command_of(spark1)
    variables = ["docker", "inspect", "--format", "{{json .Config.Env}}", "spark-vllm"]
    assert "ODD=a b" in json.loads(spark1.run(variables).stdout)
    found = user.json("status")
    assert (found["overrides"], found["endpoint"]) == (CHANGES, "http://10.89.0.11:8001/v1")
    [memory] = [node for node in document["memory"] if node["node"] == "spark1"]
    assert memory["ready"] > 0
    assert memory["planned_ready"] is None, "a plan is of a GPU's memory"


def test_the_same_again_changes_nothing(user):
    assert user.json(*SHORT)["changed"] == 0


@pytest.mark.soak
def test_without_them_it_says_what_is_different(user, spark1):
    user(*SHORT)
    ran = user(*ONE)
    assert f"the server runs with {CHANGES}" in ran.printed
    assert "--max-model-len 4096" in command_of(spark1)
    found = user.json("status")
    assert (found["overrides"], found["endpoint"]) == ("", "http://10.89.0.11:8000/v1")
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
