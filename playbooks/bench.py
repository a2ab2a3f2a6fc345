"""Measure a suite: each server is brought up, verified, measured, and taken down."""

from __future__ import annotations

from spark_cluster.bench.sequence import go_on
from spark_cluster.bench.steps import BenchRun
from spark_cluster.runner.play import Play


def main(
    play: Play, *, run: BenchRun, keep: bool = False, stop_at_first_failure: bool = False
) -> None:
    """Measure what has no result yet; with `keep` the last server stays up."""
    go_on(play, run, keep=keep, stop_at_first_failure=stop_at_first_failure)
