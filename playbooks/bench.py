"""Measure a suite: each server is brought up, verified, measured, and taken down."""

from __future__ import annotations

from spark_cluster.bench.replica_run import measure_step
from spark_cluster.bench.run import BenchRun, go_on
from spark_cluster.runner.play import Play


def main(play: Play, *, run: BenchRun, keep: bool = False) -> None:
    """Measure what has no result yet; with `keep` the last server stays up."""
    go_on(play, run, keep=keep, measure_step=measure_step)
