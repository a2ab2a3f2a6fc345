"""`bench`: scripted benchmark runs; each command is imported when it is called."""

from __future__ import annotations

from importlib import import_module

import click

from spark_cluster.cli.groups import Group

COMMANDS = {
    "suites": "bench_suites:suites",
    "run": "bench_run:run",
    "attach": "bench_run:attach",
    "status": "bench_run:status",
    "stop": "bench_run:stop",
    "fetch": "bench_run:fetch",
    "repeat": "bench_repeat:repeat",
    "fabric": "bench_fabric:fabric",
    "show": "bench_show:show",
    "compare": "bench_compare:compare",
    "report": "bench_report:command",
}
"""Name to module and function, in the order of --help."""


class Bench(Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name not in self.commands:
            from spark_cluster.cli import take_globals

            module, _, name = COMMANDS[cmd_name].partition(":")
            found: click.Command = getattr(import_module(f"spark_cluster.cli.{module}"), name)
            take_globals(found)
            self.add_command(found, cmd_name)
        return self.commands[cmd_name]


@click.group(cls=Bench)
def command() -> None:
    """Measure suites of loads on servers that are brought up for it, compare runs, and report."""
