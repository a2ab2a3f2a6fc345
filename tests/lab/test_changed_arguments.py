"""`up` with engine arguments of the command line, what the nodes remember of it, and their caches;
on real Docker and real vLLM.

On CPUs the lab's recipes compile nothing, so that a start is warm or cold is not seen here: a node
is given the compiled code and the record of a launch that had some.
"""

import json
from typing import Any

import pytest

from spark_cluster.node import paths
from spark_cluster_lab import LabNode

pytestmark = pytest.mark.lab

ONE = ("up", "--tp", "1", "--recipe", "lab-paris")
SHORT = (*ONE, "--max-model-len", "1k", "-o", "max_num_seqs=2", "-e", "ODD=a b", "--port", "8001")
CHANGES = "-e 'ODD=a b' -o max-model-len=1000 -o max-num-seqs=2"


def command_of(spark1: LabNode) -> str:
    return spark1.run(["docker", "inspect", "--format", "{{.Config.Cmd}}", "spark-vllm"]).stdout


def records(node: LabNode) -> list[dict[str, Any]]:
    return json.loads(node.run(["cat", paths.LAUNCHES]).stdout)["launches"]


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


def test_the_same_again_changes_nothing_and_is_recorded_once(user, spark1):
    before = records(spark1)
    assert (before[0]["recipe"], len(before[0]["arguments"])) == ("lab-paris", 64)
    assert before[0]["image"].startswith("sha256:")
    assert before[0]["version"]
    assert spark1.run(["stat", "-c", "%a %U", paths.LAUNCHES]).stdout.split() == ["600", "root"]
    assert user.json(*SHORT)["changed"] == 0
    assert records(spark1) == before
