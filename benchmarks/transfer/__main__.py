"""`python -m benchmarks.transfer`: a model from one machine to another, next to rsync over ssh."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.transfer.figures import Copy, Row, Verdict, rows, verdicts
from benchmarks.transfer.links import LINKS, pair
from benchmarks.transfer.ways import OURS, RSYNC, Setting, WayError, copy
from spark_cluster.engine.copies.certificate import make_certificate
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.manifest import SHA256, Manifest

REPOSITORY, COMMIT = "benchmark/model", "b" * 40
PEERS = ("spark-vllm-docker", "sparkrun")


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


def certificate(keys: Path) -> None:
    """The certificate of our sender."""
    made = make_certificate()
    (keys / "sender.pem").write_text(made.certificate)
    (keys / "sender.key").write_text(made.key)


def nothing_lacking(folder: Path) -> float:
    """Seconds to find that nothing of a model of 200 files is lacking."""
    manifest = make_model(folder, 200 * 1024, 200)
    begun = time.monotonic()
    if not HubCache(folder).lacking(manifest).nothing:
        raise WayError("something is lacking of what was just made")
    return time.monotonic() - begun


@click.command()
@click.option("--size", default=2.0, show_default=True, help="Of the model, GB.")
@click.option("--shards", default=40, show_default=True, type=click.IntRange(1))
@click.option("--mbit", default=1000, show_default=True, help="Of each of the two links, Mbit/s.")
@click.option("--runs", default=3, show_default=True, type=click.IntRange(1))
@click.option("--folder", type=click.Path(path_type=Path), help="On the disk to be used.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all runs here.")
def main(
    size: float, shards: int, mbit: int, runs: int, folder: Path | None, json_file: Path | None
) -> None:
    """Copy a model over two shaped links between two network namespaces; needs root and Linux."""
    console = Console() if sys.stdout.isatty() else Console(width=100)
    ways = (*OURS, *RSYNC)
    copies: list[Copy] = []
    with tempfile.TemporaryDirectory(prefix="sctransfer-", dir=folder or "/var/tmp") as name:
        where = Path(name)
        for part in ("source", "keys", "small"):
            (where / part).mkdir(mode=0o700)
        certificate(where / "keys")
        manifest = make_model(where / "source", int(size * 1e9), shards)
        nothing = nothing_lacking(where / "small")
        try:
            with pair(mbit) as links:
                setting = Setting(
                    links, where / "source", where / "target", where / "keys", manifest
                )
                for number in range(runs):
                    for way in ways[number % len(ways) :] + ways[: number % len(ways)]:
                        setting.target.mkdir()
                        copies.append(copy(setting, way))
                        shutil.rmtree(setting.target)
                        console.print(f"{way}: {copies[-1].gbit:.2f} Gbit/s", style="dim")
        except WayError as error:
            console.print(f"error: {error}", style="red", markup=False, highlight=False)
            sys.exit(1)
    found = rows(copies, ways, next(iter(OURS)), LINKS * mbit / 1000)
    by_way = {row.way: row for row in found}
    judged = verdicts(by_way, next(iter(OURS)), "rsync -a", PEERS, nothing)
    _show(console, found, judged)
    if json_file:
        written = [dataclasses.asdict(one) for one in copies]
        json_file.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
    sys.exit(0 if all(one.met for one in judged) else 1)


def _show(console: Console, found: list[Row], judged: list[Verdict]) -> None:
    table = Table(title="one model, both links; medians")
    table.add_column("way")
    for title in ("wall s", "share of links", "CPU s/GB", "wall/ours"):
        table.add_column(title, justify="right")
    for row in found:
        table.add_row(
            row.way, f"{row.wall:.1f}", f"{row.share:.0%}", f"{row.cpu_a_gb:.2f}",
            f"{row.to_ours:.2f}",
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
