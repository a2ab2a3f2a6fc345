"""`bench`: scripted benchmark runs; each command is imported when it is called."""

from __future__ import annotations

import click

from spark_cluster.cli.options import Group

COMMANDS = {
    "suites": "bench_suites:suites",
    "run": "bench_run:run",
    "attach": "bench_run:attach",
    "status": "bench_run:status",
    "stop": "bench_run:stop",
    "fetch": "bench_run:fetch",
    "repeat": "bench_run:repeat",
    "fabric": "bench_fabric:fabric",
    "show": "bench_results:show",
    "compare": "bench_results:compare",
    "report": "bench_results:report",
}
"""Name to module and function, in the order of --help."""


@click.group(cls=Group, later=COMMANDS)
def command() -> None:
    """Measure suites of loads on servers that are brought up for it, compare runs, and report."""
