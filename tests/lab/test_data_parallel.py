"""vLLM's data parallel mode over Ray: one server, a rank of real vLLM on each of two nodes."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from exposure import only_the_endpoint
from on_nodes import ranks

from spark_cluster_lab import LabNode

pytestmark = [pytest.mark.lab, pytest.mark.soak]

URL = "http://10.89.0.11:8000"
UP = ("up", "--data-parallel", "2")
BODY = '{"model": "paris", "prompt": "What is the capital of France?", "max_tokens": 32}'
ASK = ["curl", "-s", "-H", "Content-Type: application/json", "-d", BODY]


def answered(head: LabNode) -> dict[str, float]:
    """Return the tokens that each rank has generated, as the server counts them."""
    shown = head.run(["curl", "-s", f"{URL}/metrics"]).stdout
    found = re.findall(r'^vllm:generation_tokens_total{engine="(\d+)".*} (\S+)$', shown, re.M)
    return {rank: float(count) for rank, count in found}


def test_a_rank_on_each_node_serves(user, spark1, spark2):
    document = user.json(*UP)
    assert document["tp"] == 1
    assert "Paris" in document["answer"]
    assert (ranks(spark1), ranks(spark2)) == (1, 1)
    assert user.json(*UP)["changed"] == 0
    found = user.json("status")
    assert (found["state"], found["problems"]) == ("serving", [])
    assert (found["tp"], found["data_parallel"]) == (1, 2)
    assert found["overrides"] == "-o data-parallel-size=2"
    assert found["ray"] == {"nodes": 2, "gpus": 2}
    with ThreadPoolExecutor(8) as pool:
        list(
            pool.map(
                lambda _: spark1.run([*ASK, "http://10.89.0.11:8000/v1/completions"]), range(8)
            )
        )
    counted = answered(spark1)
    assert sorted(counted) == ["0", "1"]
    assert all(counted.values()), "both ranks have answered"
    nodes = user.json("vram")["nodes"]
    assert all(node["processes"] for node in nodes)
    only_the_endpoint(spark1, spark2)


def test_nothing_is_left_after_down(user, spark1, spark2):
    user("down")
    assert user.json("status")["state"] == "stopped"
    assert (ranks(spark1), ranks(spark2)) == (0, 0)
