"""`engine: sglang` at one node, by the real `up`, against a stand-in for SGLang.

What is shown is that spark-cluster starts another engine, waits for it, asks it, explains its log
and ends it. The stand-in has no model and no GPU: nothing is shown about SGLang.
"""

import textwrap
from pathlib import Path

import pytest
from commandline import CommandLine
from exposure import only_the_endpoint
from lab_recipes import BASE_IMAGE

from spark_cluster_lab import Lab, LabNode
from spark_cluster_lab.layout import DEFAULT_STATE
from spark_cluster_lab.sglang_stand_in import REF, dockerfile

pytestmark = pytest.mark.lab

NAME = "lab-sglang"
RECIPE = Path(__file__).with_name("sglang.yaml")
ASKED = ("up", "--tp", "1", "--recipe", NAME)
UP = (*ASKED, "--allow-build-network")


def write(user: CommandLine, lab: Lab) -> None:
    # As the inventory's allow_files name it, in a second lab, too (beside.py).
    directory = DEFAULT_STATE / lab.model_path.relative_to(lab.layout.state)
    text = RECIPE.read_text().format(
        directory=directory, ref=REF, dockerfile=textwrap.indent(dockerfile(), " " * 6).rstrip(),
    )  # fmt: skip
    (user.home / f"recipes/{NAME}.yaml").write_text(text)


@pytest.fixture(scope="module")
def user(lab: Lab, user: CommandLine) -> CommandLine:
    write(user, lab)
    user("playbook", user.playbook(BASE_IMAGE))
    return user


def logs(node: LabNode) -> str:
    ran = node.run(["docker", "logs", "spark-vllm"])
    return ran.stdout + ran.stderr


def test_it_comes_up_at_one_node(user, spark1, spark2):
    assert "--allow-build-network" in user(*ASKED, status=4).err, "a Dockerfile is asked for"
    document = user.json(*UP)
    assert "Paris" in document["answer"]
    assert document["verified"] == ["answer"]
    command = spark1.run(["docker", "inspect", "-f", "{{json .Args}}", "spark-vllm"]).stdout
    assert "sglang.launch_server" in command
    assert "server_args=ServerArgs(model_path='/srv/models/paris'" in logs(spark1)
    found = user.json("status")
    assert (found["state"], found["problems"]) == ("serving", [])
    (first, *_) = user.json("vram")["nodes"]
    assert any("sglang" in process["name"] for process in first["processes"])
    assert user.json(*UP)["changed"] == 0
    only_the_endpoint(spark1, spark2)


def test_it_goes_down(user, lab, spark1):
    write(user, lab)
    user.json(*UP)
    user("down")
    assert spark1.run(["docker", "ps", "-aq"]).stdout == ""
