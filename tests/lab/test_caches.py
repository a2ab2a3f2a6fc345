"""What the nodes remember of a launch, and their caches as parts; on real Docker and real vLLM.

On CPUs the lab's recipes compile nothing, so that a start is warm or cold is not seen here: a node
is given the compiled code and the record of a launch that had some.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from commandline import CommandLine

from spark_cluster.node import paths

pytestmark = pytest.mark.lab

ROOT = "/var/cache/spark-cluster/engine"
KEY = "0a1b2c3d4e"
COMPILED = f"{ROOT}/vllm/torch_compile_cache/{KEY}"
UP = ("up", "--tp", "1", "--recipe", "lab-paris")


@pytest.fixture(scope="module")
def user(lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[CommandLine]:
    made = CommandLine(tmp_path_factory.mktemp("caches"))
    made.json(*UP)
    yield made
    made("down")
    lab.node("spark1").run(["rm", "-rf", COMPILED])


def records(node) -> list[dict]:
    return json.loads(node.run(["cat", paths.LAUNCHES]).stdout)["launches"]


def test_a_ready_launch_is_on_record(user, spark1):
    found = records(spark1)[0]
    assert found["recipe"] == "lab-paris"
    assert found["image"].startswith("sha256:")
    assert found["version"]
    assert len(found["arguments"]) == 64
    assert spark1.run(["stat", "-c", "%a %U", paths.LAUNCHES]).stdout.split() == ["600", "root"]


def test_the_same_again_is_recorded_once(user, spark1):
    before = records(spark1)
    assert user.json(*UP)["changed"] == 0
    assert records(spark1) == before


def test_parts_are_listed_and_pruned(user, spark1):
    spark1.run(["mkdir", "-p", f"{COMPILED}/rank_0_0"])
    spark1.run(
        ["sh", "-c", f"echo x > {COMPILED}/rank_0_0/model; touch -d 2020-01-01 $(find {COMPILED})"]
    )
    parts = user.json("caches", "list")["parts"]
    ours = next(part for part in parts if part["path"].endswith(KEY))
    assert (ours["node"], ours["kind"], ours["recipes"]) == ("spark1", "compile", [])
    shared = [part for part in parts if part["kind"] == "triton" and part["node"] == "spark1"]
    assert all(part["kept"] for part in shared), "a server runs"
    user("down")
    assert user.json("caches", "prune")["applied"] is False
    assert spark1.run(["test", "-d", COMPILED], check=False).returncode == 0
    done = user.json("caches", "prune", "--apply")
    assert KEY in [part["path"].rpartition("/")[2] for part in done["parts"]]
    assert spark1.run(["test", "-d", COMPILED], check=False).returncode != 0
