"""`python -m benchmarks.transfer`: a model from one machine to another, next to rsync."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.transfer.figures import Copy, Row, Verdict, rows, verdicts
from benchmarks.transfer.links import LINKS, pair
from benchmarks.transfer.ways import WAYS, Setting, WayError, copy
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.manifest import SHA256, Manifest

REPOSITORY, COMMIT = "benchmark/model", "b" * 40


def make_model(root: Path, size: int, shards: int) -> Manifest:
    """A model of random bytes, which no compression makes smaller."""
    cache, files = HubCache(root), []
    blobs = cache.folder(REPOSITORY) / "blobs"
    blobs.mkdir(parents=True)
    for number in range(shards):
        data = os.urandom(size // shards)
        name = hashlib.sha256(data).hexdigest()
        (blobs / name).write_bytes(data)
        path = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        files.append({"path": path, "size": len(data), "blob": name, "algorithm": SHA256})
    manifest = Manifest.from_document({"repository": REPOSITORY, "commit": COMMIT, "files": files})
    cache.publish(manifest, "main")
    return manifest


@click.command()
@click.option("--size", default=4.0, show_default=True, help="Of the model, GB.")
@click.option("--shards", default=8, show_default=True, type=click.IntRange(1))
@click.option(
    "--mbit", "links", default=(1000, 0), show_default=True, multiple=True,
    help="Of each of the two links, Mbit/s; 0 for no limit. Repeatable.",
)  # fmt: skip
@click.option("--runs", default=5, show_default=True, type=click.IntRange(1))
@click.option("--way", "ways", multiple=True, type=click.Choice(list(WAYS)), help="Only these.")
@click.option("--folder", type=click.Path(path_type=Path), help="On the disk to be used.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all runs here.")
def main(
    size: float,
    shards: int,
    links: tuple[int, ...],
    runs: int,
    ways: tuple[str, ...],
    folder: Path | None,
    json_file: Path | None,
) -> None:
    """Copy a model over two links between two network namespaces, in alternation; needs root."""
    console = Console() if sys.stdout.isatty() else Console(width=100)
    ways, written, met = ways or tuple(WAYS), list[dict[str, object]](), True
    with tempfile.TemporaryDirectory(prefix="sctransfer-", dir=folder or "/var/tmp") as name:
        where = Path(name)
        for part in ("source", "keys"):
            (where / part).mkdir(mode=0o700)
        manifest = make_model(where / "source", int(size * 1e9), shards)
        for mbit in links:
            try:
                copies = _copies(console, where, manifest, mbit, runs, ways)
            except WayError as error:
                console.print(f"error: {error}", style="red", markup=False, highlight=False)
                sys.exit(1)
            found = rows(copies, ways, LINKS * mbit / 1000)
            judged = verdicts({row.way: row for row in found})
            _show(console, found, judged, f"{mbit} Mbit/s" if mbit else "no limit")
            written += [{"mbit": mbit, **dataclasses.asdict(one)} for one in copies]
            met = met and all(one.met for one in judged)
    if json_file:
        json_file.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if met else 1)


def _copies(
    console: Console, where: Path, manifest: Manifest, mbit: int, runs: int, ways: Sequence[str]
) -> list[Copy]:
    copies = []
    with pair(mbit) as links:
        setting = Setting(links, where / "source", where / "target", where / "keys", manifest)
        for number in range(runs):
            at = number % len(ways)
            for way in (*ways[at:], *ways[:at]):
                setting.target.mkdir()
                copies.append(copy(setting, way))
                shutil.rmtree(setting.target)
                shutil.rmtree(where / "target-ours", ignore_errors=True)
                console.print(f"{way}: {copies[-1].gbit:.2f} Gbit/s", style="dim")
    return copies


def _show(console: Console, found: list[Row], judged: list[Verdict], links: str) -> None:
    table = Table(title=f"one model, two links of {links}; medians")
    table.add_column("way")
    for title in ("wall s", "share of links", "CPU s/GB", "wall to the first"):
        table.add_column(title, justify="right")
    for row in found:
        table.add_row(
            row.way, f"{row.wall:.1f}", f"{row.share:.0%}" if row.share else "",
            f"{row.cpu_a_gb:.2f}", f"{row.to_first:.2f}",
        )  # fmt: skip
    console.print(table)
    figures = Table(title="Figures")
    for title in ("figure", "wanted", "seen", "met"):
        figures.add_column(title)
    for one in judged:
        figures.add_row(one.name, one.wanted, one.seen, "yes" if one.met else "no")
    console.print(figures)


if __name__ == "__main__":
    main()
