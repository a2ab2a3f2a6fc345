"""`plan` on nodes whose memory something else holds."""

from __future__ import annotations

import json

import pytest
from factories import put

from spark_cluster.config import fact_gathering

SMI = """\
#!/bin/sh
case "$1" in
--query-compute-apps*) cat "$(dirname "$0")/apps" ;;
--query-gpu*) echo "NVIDIA GB10, 12.1, 580.95.05, 40, 5.0, 300, [N/A], [N/A]" ;;
esac
"""


def test_the_memory_that_a_job_holds_is_counted_and_named(project, pipes, run, monkeypatch):
    def enter(self, name):
        answer = self._sessions[name].request("gather", **fact_gathering.question())
        self.facts[name], self.users[name] = fact_gathering.facts(answer), "nvidia"

    monkeypatch.setattr(pipes, "enter", enter)
    put(project / "inventory.yaml", "nodes:\n  spark1: {address: 192.0.2.1}\n")
    put(project / "spark1/usr/local/bin/nvidia-smi", SMI, 0o755)

    def plan(job_gib):
        held = f"4711, ray::Rank.train, {job_gib << 10}\n" if job_gib else ""
        put(project / "spark1/usr/local/bin/apps", held)
        free_kib = 123_731_900 - (job_gib << 20)
        meminfo = f"MemTotal: 127600748 kB\nMemAvailable: {free_kib} kB\n"
        put(project / "spark1/proc/meminfo", meminfo)
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
