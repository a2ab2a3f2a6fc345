"""Stop serving, and verify that the memory is free again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spark_cluster.bench import vllm_runs
from spark_cluster.errors import VerificationFailed
from spark_cluster.inference.process import RAY, SERVER
from spark_cluster.inference.ray_node import RAY_HOME
from spark_cluster.inference.runtime import absent
from spark_cluster.resources import Container, Directory
from spark_cluster.runner.play import Play
from spark_cluster.serving import vram

LOAD = Container(
    vllm_runs.CONTAINER, only_labelled=vllm_runs.LABEL, stop_timeout_s=2, state="absent"
)
"""The load generator of a benchmark that was killed."""


@dataclass(frozen=True)
class Stopped:
    """The memory held before and after a stop."""

    before: list[vram.NodeVram]
    now: list[vram.NodeVram]

    def to_dict(self) -> dict[str, Any]:
        """Return it as `down --json` prints it."""
        return {
            "vram": {
                "nodes": [reading.to_dict() for reading in self.now],
                "before": [reading.to_dict() for reading in self.before],
            }
        }


def main(play: Play) -> Stopped | None:
    """Stop load and server with its proxy first, then Ray; None in check mode."""
    sessions = {node.name: play.session(node) for node in play.nodes}
    before = [] if play.check else vram.sample(sessions)
    vram.record(play.bus, "before", before)
    with play.stage("stop"):
        play.apply(
            play.nodes,
            [LOAD, *absent(SERVER, stop_timeout_s=30)],
            play.role("endpoint"),
        )
        play.apply(
            play.nodes,
            [
                *absent(RAY, stop_timeout_s=2),
                Directory(RAY_HOME, state="absent", keep=False),
            ],
            play.role("firewall", state="absent"),
        )
    if play.check:
        return None
    with play.stage("prove"):
        now = vram.until_free(sessions)
        vram.record(play.bus, "stopped", now)
    if any(reading.processes for reading in now):
        raise _held(now)
    return Stopped(before, now)


def _held(now: list[vram.NodeVram]) -> VerificationFailed:
    holders = [
        f"{p.name} (pid {p.pid}, {p.used_mib} MiB) on {reading.name}"
        for reading in now
        for p in reading.processes
    ]
    return VerificationFailed(
        f"memory is still held: {'; '.join(holders)}",
        hint="these were not started by spark-cluster, or are orphans: end them on their host",
    )
