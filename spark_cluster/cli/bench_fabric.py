"""`bench fabric`: the link between the nodes and their memory, measured as a Ray job."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import click
from rich.table import Table

from spark_cluster.bench.fabric_run import EXPECTED_GB_S, FILE, FabricRecord
from spark_cluster.bench.record import save_document
from spark_cluster.cli.app import App
from spark_cluster.cli.bench_format import figures_table
from spark_cluster.cli.bench_measure import RESULTS
from spark_cluster.cli.console import painted, styled
from spark_cluster.cli.options import Allowing, Changing, Command
from spark_cluster.cli.recipes_to_serve import recipe_for_ray
from spark_cluster.errors import UsageError, VerificationFailed
from spark_cluster.plan.estimate import Constants


@click.command(cls=Command)
def fabric(
    app: App,
    *,
    recipe_name: str | None,
    out: Annotated[
        Path | None,
        f"(FOLDER): Folder for fabric.json; by default one of the run's id in {RESULTS}/.",
    ],
    allow: Allowing,
    options: Changing,
) -> None:
    """Measure all-reduces between the nodes, and the memory bandwidth of each.

    It runs as a Ray job in the image of a recipe, while nothing is served. NCCL on GPUs, gloo on
    CPUs. The exit status is 5 when the figures are worse than expected.

    Args:
        recipe_name (--recipe NAME): Recipe whose image and message sizes are taken, instead of the
            inventory's.
    """
    if options.selection.partial and not options.check:
        raise UsageError(
            "--tags, --skip-tags and --start-at would start a part of Ray only",
            hint="leave them out, or add --check",
        )
    if out is not None and (out / FILE).exists():
        raise UsageError(f"{out} holds a {FILE} already", hint="give another folder with --out")
    recipe, size = recipe_for_ray(app.cluster, recipe_name, "bench fabric", allow)
    with app.play("bench fabric", app.nodes, options) as play_run:
        playbook = app.project.load_playbook("fabric")
        play = play_run.open()
        found = playbook.function(play, recipe=recipe, tp=size, name=play_run.id)
        folder = out or Path(RESULTS) / play_run.id
        if found is not None:
            save_document(found, folder / FILE)
        play_run.finish()
        if app.as_json:
            where = str(folder) if found is not None else None
            app.print_json(play_run.document(folder=where, fabric=found))
        else:
            app.show_recap()
            if found is not None:
                show(app, found, folder / FILE)
    if found is not None and found.verdict == "slow":
        sys.exit(VerificationFailed.exit_code)


def show(app: App, found: FabricRecord, path: Path) -> None:
    """Show the verdict, the reasons and known issues, then the figures."""
    colours = {"as expected": "green", "slow": "red", "not judged": "yellow"}
    verdict = painted(found.verdict, f"bold {colours[found.verdict]}")
    console = app.console
    versions = f"{found.backend} {found.nccl}".strip()
    about = f"{versions}, torch {found.torch}, Ray {found.ray}"
    console.print(styled("\n{} [dim]{}[/]", verdict, about), soft_wrap=True)
    for reason in found.reasons:
        console.print(styled("  {}", reason), soft_wrap=True)
    for issue in found.issues:
        title = styled("[bold]{}[/]: {} [dim]({})[/]", issue.id, issue.title, issue.found)
        console.print(title)
        console.print(styled("  [dim]fix:[/] {}", issue.fix))
    console.print(_links(found))
    console.print(_memory(found))
    if found.left_out:
        sizes = ", ".join(size_text(size) for size in found.left_out)
        console.print(styled("[yellow]no time was left for[/] {}", sizes))
    console.print(styled("written to {}", path), soft_wrap=True)


def _links(found: FabricRecord) -> Table:
    low, high = EXPECTED_GB_S
    expected = f"GB/s ({low:g}-{high:g})" if found.verdict != "not judged" else "GB/s"
    table = figures_table("all-reduce of", "us", "fastest", "slowest", expected, "", text=(0, 5))
    for row in found.allreduce:
        fast, slow = min(row.values_us), max(row.values_us)
        times = (f"{value:,.1f}" for value in (row.latency_us, fast, slow))
        table.add_row(size_text(row.bytes), *times, _rate(row.bus_gb_s), row.use)
    return table


def _rate(value: float) -> str:
    return f"{value:.2f}" if value >= 0.01 else "below 0.01"


def _memory(found: FabricRecord) -> Table:
    bandwidth = f" (of {Constants().bandwidth / 1e9:.0f})"
    whole = bandwidth if found.verdict != "not judged" else ""
    table = figures_table(
        "memory of", f"copy GB/s{whole}", f"triad GB/s{whole}", "device", text=(0, 3)
    )
    for node in found.nodes:
        rates = (f"{rate:.1f}" for rate in (node.copy_gb_s, node.triad_gb_s))
        table.add_row(node.name, *rates, node.device)
    return table


def size_text(size: int) -> str:
    """Return a number of bytes in the largest unit that divides it, such as `256 MiB`."""
    for unit, factor in (("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size % factor == 0:
            return f"{size // factor} {unit}"
    return f"{size:,} B"
