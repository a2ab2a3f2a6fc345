"""`top` on real nodes: what it shows of them, and that nothing of it stays there."""

import json
import signal
from typing import Any

import pytest
import readme
from commandline import until

from spark_cluster_lab import LabNode

pytestmark = pytest.mark.lab


def sampled(text: str, node: str) -> list[dict[str, Any]]:
    """The samples of a node among JSON lines."""
    told = [json.loads(line) for line in text.splitlines()]
    return [line for line in told if line["node"] == node and "time" in line]


def left(node: LabNode) -> str:
    """Return the samplers that still run on a node."""
    patterns = "spark_cluster.node.telemetr[y]|query-gpu=utilizatio[n]"
    return node.run(["pgrep", "-f", patterns], check=False).stdout.strip()


def test_both_nodes_with_their_gpu_memory_and_hcas(user, spark1, spark2):
    ran = user(*readme.words("spark-cluster top"), "--json", "--count", "4")
    for name in ("spark1", "spark2"):
        last = sampled(ran.out, name)[-1]
        assert last["sm_clock_mhz"] > 0
        assert last["power_w"] > 0
        assert last["throttle"] == ""
        assert last["mem_available_mib"] > 0
        assert last["rdma_rx_bytes_s"] is not None
        assert last["net_rx_bytes_s"] is not None
        assert any(line["processes"] is not None for line in sampled(ran.out, name))
        assert last["notes"] == []
    until(lambda: not left(spark1) and not left(spark2), what="the end of the samplers")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_stays_on_the_nodes(user, spark1, number):
    started = user.start("--limit", "spark1", "top")
    until(lambda: left(spark1), what="the sampler")
    started.process.send_signal(number)
    started.process.communicate()
    until(lambda: not left(spark1), what="the end of the sampler")
