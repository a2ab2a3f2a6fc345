"""`bench`: scripted benchmark runs."""

from __future__ import annotations

import click

from spark_cluster.cli.bench_run import attach, fetch, run, status, stop


@click.group()
def command() -> None:
    """Measure what is served, compare and report."""


for one in (run, attach, status, stop, fetch):
    command.add_command(one)
