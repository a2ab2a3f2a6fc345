"""`engine: sglang` at one node, by the real `up`, against a stand-in for SGLang.

What is shown is that spark-cluster starts another engine, waits for it, asks it, explains its log
and ends it. The stand-in has no model and no GPU: nothing is shown about SGLang.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from commandline import WAIT_S, CommandLine
from exposure import exposure
from sglang_recipe import NAME, recipe_text

from spark_cluster_lab import Lab, LabNode
from spark_cluster_lab.layout import DEFAULT_STATE

pytestmark = pytest.mark.lab

PREPARE = """\
def main(play):
    image = Image("spark-vllm:lab", archive="/srv/images/spark-vllm.tar")
    play.apply(play.nodes, "network", "containers", [image])  # the fabric is scanned, too
"""
ASKED = ("up", "--tp", "1", "--recipe", NAME)
UP = (*ASKED, "--allow-build-network")


def write(user: CommandLine, lab: Lab, **changes: object) -> None:
    model = lab.model_path.relative_to(lab.layout.state)
    # As the inventory's allow_files name it, in a second lab, too (beside.py).
    text = recipe_text(str(DEFAULT_STATE / model), **changes)  # type: ignore[arg-type]
    (user.home / f"recipes/{NAME}.yaml").write_text(text)


@pytest.fixture(scope="module")
def user(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    made = CommandLine(tmp_path_factory.mktemp("sglang"))
    (made.home / "recipes").mkdir()
    write(made, lab)
    made("down")
    made("playbook", made.playbook(PREPARE))
    yield made
    made("down")


def logs(node: LabNode) -> str:
    ran = node.run(["docker", "logs", "spark-vllm"])
    return ran.stdout + ran.stderr


def test_it_comes_up_at_one_node(user: CommandLine, spark1: LabNode) -> None:
    assert "--allow-build-network" in user(*ASKED, status=4).err, "a Dockerfile is asked for"
    document = user.json(*UP)
    assert "Paris" in document["answer"]
    assert document["verified"] == ["answer"]
    command = spark1.run(["docker", "inspect", "-f", "{{json .Args}}", "spark-vllm"]).stdout
    assert "sglang.launch_server" in command
    assert "server_args=ServerArgs(model_path='/srv/models/paris'" in logs(spark1)
    found = user.json("status")
    assert (found["state"], found["problems"]) == ("serving", [])


def test_again_changes_nothing(user: CommandLine) -> None:
    assert user.json(*UP)["changed"] == 0


def test_its_process_is_among_those_that_hold_memory(user: CommandLine) -> None:
    (first, *_) = user.json("vram")["nodes"]
    assert any("sglang" in process["name"] for process in first["processes"])


def test_a_neighbour_reaches_the_endpoint_and_nothing_else(
    spark1: LabNode, spark2: LabNode
) -> None:
    with exposure(spark1, spark2) as seen:
        assert {(node, port) for node, _, port in seen.open()} == {("spark1", 8000)}


def test_explain_reads_its_log(user: CommandLine, spark1: LabNode) -> None:
    path = user.home / "sglang.log"
    path.write_text(logs(spark1))
    found = user.json("explain", str(path))
    assert (found["engine"], found["cause"], found["missing"]) == ("SGLang", None, [])


def test_a_flag_that_it_does_not_know_ends_the_start(user: CommandLine, lab: Lab) -> None:
    write(user, lab, no_such_flag=1)
    ran = user.start(*UP, "--force").end(status=None)
    assert "unrecognized arguments" in ran.out + ran.err
    assert "--no-such-flag" in ran.out + ran.err


def test_a_share_without_room_is_explained(user: CommandLine, lab: Lab, spark1: LabNode) -> None:
    write(user, lab, share=0.06)
    process = user.start(*UP, "--force").process  # the plan finds it too
    out, err = process.communicate(timeout=WAIT_S)
    assert process.returncode == 1
    # The end of the log is shown, which has the engine's own traceback.
    assert "Not enough memory. Please try to increase --mem-fraction-static" in out + err
    path = user.home / "small.log"
    path.write_text(logs(spark1))
    assert user.json("explain", str(path))["cause"]["id"] == "sglang-no-room-for-kv"


def test_it_goes_down(user: CommandLine, lab: Lab, spark1: LabNode) -> None:
    write(user, lab)
    user.json(*UP)
    user("down")
    assert spark1.run(["docker", "ps", "-aq"]).stdout == ""
