"""`python -m benchmarks.engine`: our engine and its peers, the same play, compared."""

from __future__ import annotations

import dataclasses
import json
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.engine import figures
from benchmarks.engine.link import LinkError, clean_stale
from benchmarks.engine.nodes import bare, lab
from benchmarks.engine.peers import ToolError
from benchmarks.engine.run import TOOLS, Bench, Cost, medians
from spark_cluster.errors import SparkClusterError

_DEFAULT_TOOLS = "ours,ansible,pyinfra,floor"


def _numbers(_context: click.Context, _option: click.Parameter, value: str) -> list[int]:
    try:
        numbers = [int(part) for part in value.split(",") if part]
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of numbers such as 1,2") from None
    if any(number < 1 for number in numbers):
        raise click.BadParameter("numbers start at 1")
    return numbers


def _names(_context: click.Context, _option: click.Parameter, value: str) -> list[str]:
    names = value.split(",")
    if unknown := [name for name in names if name not in TOOLS]:
        raise click.BadParameter(f"unknown: {', '.join(unknown)}; there are {', '.join(TOOLS)}")
    return names


@click.command()
@click.option("--nodes", default="1,2", callback=_numbers, help="Numbers of nodes.")
@click.option("--runs", default=3, type=click.IntRange(1), help="Runs of each kind.")
@click.option("--rtt-ms", default=5.0, type=click.FloatRange(0), help="Round-trip time.")
@click.option("--tools", default=_DEFAULT_TOOLS, callback=_names, help=f"Of {', '.join(TOOLS)}.")
@click.option(
    "--scale", default="", callback=_numbers, help="Ours and the floor, unchanged, on so many."
)
@click.option(
    "--tree",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Run on bare sshd processes over this Linux tree, not on the lab (--scale needs it).",
)
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all runs here.")
def main(
    nodes: list[int],
    runs: int,
    rtt_ms: float,
    tools: list[str],
    scale: list[int],
    tree: Path | None,
    json_file: Path | None,
) -> None:
    """Measure wall, CPU, SSH sessions and network turns of a 50-resource play."""
    console = Console()
    if scale and tree is None:
        raise click.UsageError("--scale needs --tree")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that all is taken down again
    clean_stale()
    count, rtt = max(scale or nodes), rtt_ms / 1000
    try:
        where = lab(count, rtt) if tree is None else bare(tree, count, rtt)
        with tempfile.TemporaryDirectory(prefix="scbench-") as folder, where as site:
            seen = site.link.round_trip(site.nodes[0].address) * 1000
            console.print(f"round trip {seen:.2f} ms, asked for {rtt_ms:g} ms")
            serving = site.serving() if tree is None else []
            if serving:
                console.print(_next_to(serving), style="yellow", highlight=False)
            bench = Bench(site, Path(folder), lambda cost: console.print(_line(cost), style="dim"))
            costs = bench.scale(scale, runs) if scale else bench.compare(tools, nodes, runs)
    except (LinkError, ToolError, SparkClusterError) as error:
        console.print(f"[red]error:[/red] {error}", highlight=False)
        sys.exit(1)
    middle = medians(costs)
    console.print("50 resources; medians; sessions, turns and KiB of a node; x: to ours")
    console.print(*_tables(middle))
    found = figures.scaled(middle) if scale else figures.compared(middle)
    if found:
        console.print(_promises(found))
    if json_file:
        document = {
            "rtt_ms": seen,
            "serving": serving,
            "runs": [dataclasses.asdict(cost) for cost in costs],
            "figures": [dataclasses.asdict(figure) for figure in found],
        }
        json_file.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def _next_to(serving: list[str]) -> str:
    return (
        f"an engine runs on the same cores ({', '.join(serving)}): the figures are not those of "
        "idle nodes; `spark-cluster -i lab down` ends it"
    )


def _line(cost: Cost) -> str:
    return f"{cost.tool}, {_where(cost)}, {cost.kind}: {cost.wall:.2f} s"


def _where(cost: Cost) -> str:
    return f"{cost.nodes} node{'s' if cost.nodes > 1 else ''}"


def _tables(costs: list[Cost]) -> Iterator[Table]:
    """One table for each kind of run and number of nodes."""
    ratios = figures.ratios(costs)
    for kind, nodes in sorted({(cost.kind, cost.nodes) for cost in costs}):
        here = [cost for cost in costs if (cost.kind, cost.nodes) == (kind, nodes)]
        table = Table(
            title=f"\n{kind}, {_where(here[0])}", title_justify="left", box=None, pad_edge=False
        )
        table.add_column("tool")
        heads = ["wall s", "CPU s", "TCP", "sessions", "turns", "KiB up", "down"]
        for head in [*heads, "x wall", "x CPU"]:
            table.add_column(head, justify="right")
        for cost in here:
            table.add_row(
                cost.tool,
                f"{cost.wall:.2f}",
                f"{cost.cpu:.2f}",
                f"{cost.connections:g}",
                f"{cost.sessions:g}",
                f"{cost.turns:g}",
                f"{cost.bytes_up / nodes / 1024:.0f}",
                f"{cost.bytes_down / nodes / 1024:.0f}",
                *(f"{part:.2f}" for part in ratios.get((cost.tool, nodes, kind), ())),
            )
        yield table


def _promises(found: list[figures.Figure]) -> Table:
    table = Table("figure", "wanted", "seen", "met", title="Figures")
    for figure in found:
        table.add_row(figure.what, figure.wanted, figure.seen, "yes" if figure.met else "no")
    return table


if __name__ == "__main__":
    main()
