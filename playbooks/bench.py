"""Measure a suite: each server is brought up, verified, measured, and taken down."""

from __future__ import annotations

from spark_cluster.bench.sequence import go_on
from spark_cluster.bench.steps import BenchRun
from spark_cluster.engine.launches import previous_server_of
from spark_cluster.engine.names import SERVER
from spark_cluster.engine.readiness import container_state
from spark_cluster.runner.play import Play


def main(
    play: Play, *, run: BenchRun, keep: bool = False, stop_at_first_failure: bool = False
) -> None:
    """Measure what has no result yet; with `keep` the last server stays up."""
    begins = not (run.record.setups or play.check)
    before = previous_server_of(container_state(play, SERVER)) if begins else None
    go_on(play, run, keep=keep, stop_at_first_failure=stop_at_first_failure)
    if before is not None and run.record.setups and not keep:
        play.note(f"{before} served before and is stopped; to serve it again: {before.command}")
