"""`python -m benchmarks.commands`: how long whole commands take, next to a bare login."""

from __future__ import annotations

import dataclasses
import getpass
import json
import sys
import tempfile
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.commands.commands import Command, commands
from benchmarks.commands.timing import CommandError, Cost, Row, measure, rows
from spark_cluster.cli.opened import Opened
from spark_cluster.config.inventory import Inventory
from spark_cluster.errors import SparkClusterError


def nodes_of(inventory: Inventory) -> list[object]:
    """Return how the floor logs in: known_hosts files and paramiko's settings, for each node."""
    usual = Path("~/.ssh/known_hosts").expanduser()
    found: list[object] = []
    for node in inventory.nodes.values():
        settings = {
            "hostname": node.address,
            "port": node.port or 22,
            "username": node.user or getpass.getuser(),
            **({"key_filename": str(node.identity_file)} if node.identity_file else {}),
        }
        known = [path for path in (node.known_hosts, usual) if path is not None and path.exists()]
        found.append(([str(path) for path in known], settings))
    return found


@click.command()
@click.option("--inventory", default="lab", show_default=True, help="A file, or a shipped name.")
@click.option("--runs", default=7, show_default=True, type=click.IntRange(1))
@click.option("--only", multiple=True, metavar="NAME", help="Only this command; repeatable.")
@click.option("--skip", multiple=True, metavar="NAME", help="Not this command; repeatable.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all runs here.")
def main(
    inventory: str, runs: int, only: tuple[str, ...], skip: tuple[str, ...], json_file: Path | None
) -> None:
    """Time whole processes of commands against the nodes of an inventory.

    `up again` serves what the inventory names; where nothing serves yet, it is brought up first.
    """
    console = Console() if sys.stdout.isatty() else Console(width=100)
    with tempfile.TemporaryDirectory(prefix="scbench-") as folder:
        nodes_file = Path(folder) / "nodes.json"
        try:
            found = nodes_of(Opened(inventory).inventory)
            nodes_file.write_text(json.dumps(found), encoding="utf-8")
            chosen = _chosen(commands(inventory, nodes_file), only, skip)
            costs = measure(chosen, runs, lambda cost: console.print(_line(cost), style="dim"))
        except (CommandError, SparkClusterError) as error:
            console.print(f"error: {error}", style="red", markup=False, highlight=False)
            sys.exit(1)
    console.print(_table(rows(chosen, costs), runs))
    if json_file:
        written = [dataclasses.asdict(cost) for cost in costs]
        json_file.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


def _line(cost: Cost) -> str:
    return f"{cost.command}: {cost.wall:.2f} s"


def _chosen(known: list[Command], only: tuple[str, ...], skip: tuple[str, ...]) -> list[Command]:
    names = {command.name for command in known}
    if unknown := [name for name in (*only, *skip) if name not in names]:
        raise click.BadParameter(f"unknown: {', '.join(unknown)}; there are {', '.join(names)}")
    return [
        command
        for command in known
        if command.name not in skip and (not only or command.name in only or not command.floor)
    ]


def _table(found: list[Row], runs: int) -> Table:
    table = Table(title=f"whole processes, {runs} runs; seconds")
    table.add_column("command", no_wrap=True)
    for head in ("least", "median", "CPU", "to its floor", "wanted", "met"):
        table.add_column(head, justify="right")
    for row in found:
        wanted = row.command.wanted_s
        table.add_row(
            row.command.name,
            f"{row.least:.2f}",
            f"{row.median:.2f}",
            f"{row.cpu:.2f}",
            "" if row.ratio is None else f"{row.ratio:.2f}",
            "" if wanted is None else f"{wanted:.2f}",
            {None: "", True: "yes", False: "no"}[row.met],
        )
    return table


if __name__ == "__main__":
    main()
