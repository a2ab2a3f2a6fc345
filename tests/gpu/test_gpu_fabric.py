"""`bench fabric` with NCCL between two GPUs; with one it says what is missing."""

import pytest
from gpu_recipes import PARIS

pytestmark = pytest.mark.gpu


def test_one_node_has_no_link(user):
    assert "one node is chosen" in user("bench", "fabric", status=4).err


def test_the_link_of_two_nodes(pair):
    """All-reduces grow with their messages, and nothing is expected of GPUs that are no Spark's."""
    pair("down")
    words = ("--recipe", PARIS, "--out", "gpu-fabric", *pair.allowed)
    found = pair.json("bench", "fabric", *words)["fabric"]
    assert (found["backend"], found["verdict"]) == ("nccl", "not judged")
    assert len(found["nodes"]) == 2
    assert all("NVIDIA" in node["device"] for node in found["nodes"])
    assert all(node["copy_gb_s"] > 100 for node in found["nodes"]), "memory of a GPU"
    assert any("NCCL" in line for node in found["nodes"] for line in node["nccl_log"])
    rows = sorted(found["allreduce"], key=lambda row: row["bytes"])
    assert rows[0]["latency_us"] < rows[-1]["latency_us"]
    assert rows[-1]["bus_gb_s"] > rows[0]["bus_gb_s"]
    uses = {row["use"] for row in rows}
    assert {"one token", "prefill chunk"} <= uses
