"""`python -m benchmarks.transfer.pipeline`: a download, a copy, and both at the same time.

The download is the product's own, by the hub's library, from a server with a limited rate on the
sender; the copy goes over the same shaped links as in the other benchmark.
"""

from __future__ import annotations

import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from benchmarks.transfer.__main__ import certificate
from benchmarks.transfer.links import Pair, pair
from benchmarks.transfer.side import HUB_PORT
from spark_cluster.node.store.download import FILES_AT_A_TIME
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.manifest import Manifest
from spark_cluster.node.store.records import Records

REPOSITORY = "benchmark/model"
ALLOWED = 1.1
"""Times the longer of download and copy that both together may take."""
LIMIT_S = 900.0
ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Run:
    """Seconds of the download alone, of the copy alone, and of both at the same time."""

    download: float
    copy: float
    both: float

    @property
    def ratio(self) -> float:
        """Both together to the longer of the two."""
        return self.both / max(self.download, self.copy)


@dataclass(frozen=True)
class Bench:
    """Where all is."""

    links: Pair
    where: Path
    rate: int

    def run(self) -> Run:
        """Measure all three, each into empty folders."""
        with self._hub():
            for name in ("source", "target", "ours"):
                shutil.rmtree(self.where / name, ignore_errors=True)
            begun = time.monotonic()
            self._pull().wait(LIMIT_S)
            download = time.monotonic() - begun
            manifest = self._manifest()
            copy = self._copy(manifest, follow=False)
            for name in ("source", "target"):
                shutil.rmtree(self.where / name)
            begun = time.monotonic()
            pulling = self._pull()
            self._copy(manifest, follow=True)
            both = time.monotonic() - begun
            if pulling.wait(LIMIT_S):
                raise click.ClickException("the download has failed")
        return Run(download, copy, both)

    @contextmanager
    def _hub(self) -> Iterator[None]:
        argv = (sys.executable, "-m", "benchmarks.transfer.side", "hub")
        with subprocess.Popen(
            self.links.on_sender(*argv), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True,
        ) as server:  # fmt: skip
            assert server.stdin is not None
            assert server.stdout is not None
            server.stdin.write(
                json.dumps({"root": str(self.where / "hub"), "rate": self.rate}) + "\n"
            )
            server.stdin.flush()
            server.stdout.readline()
            try:
                yield
            finally:
                server.stdin.close()
                server.wait(30)

    def _pull(self) -> subprocess.Popen[bytes]:
        request = {
            "repository": REPOSITORY,
            "revision": "main",
            "cache": str(self.where / "source"),
            "ours": str(self.where / "ours"),
            "endpoint": f"http://127.0.0.1:{HUB_PORT}",
            "token": "",
            "all_files": False,
        }
        program = (sys.executable, "-m", "spark_cluster.node.store.download")
        started = subprocess.Popen(
            self.links.on_sender(*program), cwd=ROOT, stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
        assert started.stdin is not None
        started.stdin.write(json.dumps(request).encode())
        started.stdin.close()
        return started

    def _manifest(self) -> Manifest:
        cache = HubCache(self.where / "source")
        found = Records(self.where / "ours").manifest(REPOSITORY, cache.commits(REPOSITORY)[0])
        if found is None:
            raise click.ClickException("the download has left no manifest")
        return found

    def _copy(self, manifest: Manifest, *, follow: bool) -> float:
        (self.where / "keys/manifest.json").write_text(json.dumps(manifest.document()))
        keys = self.where / "keys"
        given = {
            "manifest": str(keys / "manifest.json"),
            "token": "benchmark",
            "addresses": self.links.addresses,
            "certificate": str(keys / "sender.pem"),
            "key": str(keys / "sender.key"),
            "follow": follow,
        }
        side = (sys.executable, "-m", "benchmarks.transfer.side")
        begun = time.monotonic()
        with subprocess.Popen(
            self.links.on_sender(*side, "send"), cwd=ROOT, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, text=True,
        ) as sender:  # fmt: skip
            assert sender.stdin is not None
            assert sender.stdout is not None
            sender.stdin.write(json.dumps({**given, "root": str(self.where / "source")}) + "\n")
            sender.stdin.flush()
            sender.stdout.readline()
            subprocess.run(
                self.links.on_receiver(*side, "receive"),
                cwd=ROOT,
                input=json.dumps({**given, "root": str(self.where / "target")}) + "\n",
                text=True,
                stdout=subprocess.DEVNULL,
                timeout=LIMIT_S,
                check=True,
            )
            seconds = time.monotonic() - begun
            sender.stdin.close()
            sender.wait(30)
        return seconds


def make_files(folder: Path, size: int, shards: int) -> None:
    """A repository of random bytes."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"model_type": "benchmark"}')
    for number in range(1, shards + 1):
        name = f"model-{number:05}-of-{shards:05}.safetensors"
        (folder / name).write_bytes(os.urandom(size // shards))


@click.command()
@click.option("--size", default=1.0, show_default=True, help="Of the model, GB.")
@click.option("--shards", default=8, show_default=True, type=click.IntRange(1))
@click.option("--mbit", default=1000, show_default=True, help="Of each of the two links, Mbit/s.")
@click.option("--download-mb", default=120, show_default=True, help="MB/s of the hub.")
@click.option("--runs", default=3, show_default=True, type=click.IntRange(1))
@click.option("--folder", type=click.Path(path_type=Path), help="On the disk to be used.")
def main(
    size: float, shards: int, mbit: int, download_mb: int, runs: int, folder: Path | None
) -> None:
    """Download and copy at the same time; needs root and Linux."""
    with tempfile.TemporaryDirectory(prefix="sctransfer-", dir=folder or "/var/tmp") as name:
        where = Path(name)
        (where / "keys").mkdir(mode=0o700)
        certificate(where / "keys")
        make_files(where / "hub" / REPOSITORY, int(size * 1e9), shards)
        with pair(mbit) as links:
            rate = int(download_mb * 1e6 / min(shards, FILES_AT_A_TIME))
            found = []
            for _ in range(runs):
                found.append(Bench(links, where, rate).run())
                one = found[-1]
                print(
                    f"download {one.download:.1f} s, copy {one.copy:.1f} s, both {one.both:.1f} s: "
                    f"{one.ratio:.2f} times the longer"
                )
    ratio = statistics.median(one.ratio for one in found)
    print(f"median {ratio:.2f}, wanted {ALLOWED} at most")
    sys.exit(0 if ratio <= ALLOWED else 1)


if __name__ == "__main__":
    main()
