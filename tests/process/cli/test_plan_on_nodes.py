"""`plan` on nodes whose memory something else holds."""

from __future__ import annotations

import json

import pytest
from factories import put

from spark_cluster.config.facts import GpuProcess


def test_the_memory_that_a_job_holds_is_counted_and_named(project, piped_nodes, run):
    put(project / "inventory.yaml", "nodes:\n  spark1: {address: 192.0.2.1}\n")

    def plan(job_gib):
        node = piped_nodes["spark1"]
        node.held = [GpuProcess(4711, "ray::Rank.train", job_gib << 10)] if job_gib else []
        node.available_gib = 118.0 - job_gib
        return json.loads(run("--json", "plan", "gemma4-31b-nvfp4", "--tp", "1")[1])

    idle = plan(0)
    assert idle["nodes"][0]["held_by"] == []
    busy = plan(40)
    (node,) = busy["nodes"]
    assert node["held_by"] == [{"pid": 4711, "name": "ray::Rank.train", "used_mib": 40 << 10}]
    assert node["available_gib"] == pytest.approx(idle["nodes"][0]["available_gib"] - 40)
    highest = "gpu_memory_utilization_highest"
    total = node["total_gib"]
    assert busy[highest] * total < node["available_gib"] < idle[highest] * total
    assert not any("held by" in reason for reason in busy["reasons"])
    full = plan(110)
    assert "held by ray::Rank.train (pid 4711)" in " ".join(full["reasons"])
