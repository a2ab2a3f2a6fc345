"""`python -m benchmarks.up`: `up` from stopped next to a bare script of the same containers."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.up.bare import BareScript
from spark_cluster.cli.opened import Opened
from spark_cluster.config.project import Project
from spark_cluster.config.recipes import load_recipe

WANTED = {"to its answer": 1.15, "to its end": 1.3}
"""Times the bare script, on a quiet machine."""

NO_PROXY = {"bind: management": "bind: loopback", "  open: true": "  # open: true"}
"""The bare script has no proxy in front of its server, so `up` has none here either."""


@dataclass(frozen=True)
class Pair:
    """Seconds of one alternation."""

    bare: float
    answer: float
    end: float


@click.command()
@click.option("--runs", default=4, show_default=True, type=click.IntRange(1))
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all runs here.")
def main(runs: int, json_file: Path | None) -> None:
    """Time both from stopped, in turns, on the lab's two nodes; image and model are there."""
    console = Console() if sys.stdout.isatty() else Console(width=100)
    with tempfile.TemporaryDirectory(prefix="scbench-") as folder:
        inventory = _inventory(Path(folder))
        _spark_cluster(inventory, "up", "--tp", "2")
        script = _script(inventory)
        pairs = []
        for number in range(1, runs + 1):
            pairs.append(_pair(inventory, script))
            console.print(f"{number} of {runs}: {asdict(pairs[-1])}", style="dim")
        _spark_cluster(inventory, "down")
    console.print(_table(pairs))
    if json_file:
        json_file.write_text(json.dumps([asdict(pair) for pair in pairs], indent=1) + "\n")


def _inventory(folder: Path) -> Path:
    text = Project().resolve("inventories", "lab").read_text()
    for old, new in NO_PROXY.items():
        text = text.replace(old, new)
    made = folder / "inventory.yaml"
    made.write_text(text)
    return made


def _script(inventory: Path) -> BareScript:
    found = Opened(str(inventory)).inventory
    recipe = load_recipe(found.serve.recipe or "", Project())
    nodes = sorted(found.nodes.values(), key=lambda node: not node.is_head)
    ray = recipe.ray.dashboard_port
    return BareScript(nodes, recipe.model.served_name, found.serve.port, ray)


def _pair(inventory: Path, script: BareScript) -> Pair:
    _spark_cluster(inventory, "down")
    began = time.monotonic()
    script.run()
    bare = time.monotonic() - began
    _spark_cluster(inventory, "down")
    answer, end = _spark_cluster(inventory, "up", "--tp", "2")
    return Pair(round(bare, 2), round(answer, 2), round(end, 2))


def _spark_cluster(inventory: Path, *words: str) -> tuple[float, float]:
    """Run a command; return the seconds until it says that the server answers, and to its end."""
    argv = [sys.executable, "-u", "-m", "spark_cluster", "--inventory", str(inventory), *words]
    began = time.monotonic()
    answer = 0.0
    said = []
    with subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if " answers: " in line and not answer:
                answer = time.monotonic() - began
    if process.returncode:
        sys.exit(f"{' '.join(words)} failed:\n{''.join(said[-20:])}")
    return answer, time.monotonic() - began


def _table(pairs: list[Pair]) -> Table:
    table = Table("", "median s", "times the bare script", "wanted", box=None)
    bare = statistics.median(pair.bare for pair in pairs)
    table.add_row("bare script", f"{bare:.1f}", "", "")
    for title, found in (
        ("to its answer", [(pair.answer, pair.bare) for pair in pairs]),
        ("to its end", [(pair.end, pair.bare) for pair in pairs]),
    ):
        seconds = statistics.median(ours for ours, _ in found)
        ratio = statistics.median(ours / theirs for ours, theirs in found)
        table.add_row(f"up {title}", f"{seconds:.1f}", f"{ratio:.2f}", f"{WANTED[title]:.2f}")
    return table


if __name__ == "__main__":
    main()
