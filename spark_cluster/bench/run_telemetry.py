"""Telemetry of a run: recorded on each node while cells are measured, and fetched."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import re
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from spark_cluster.bench import on_node
from spark_cluster.bench.run_folder import TELEMETRY
from spark_cluster.bench.telemetry import read_lines
from spark_cluster.bench.telemetry_file import write_parquet
from spark_cluster.errors import Failed, SparkClusterError
from spark_cluster.node import paths
from spark_cluster.node.telemetry import FILE_LIMIT, KEPT_FILES
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Session

PLACE = paths.TELEMETRY
"""On every node; root's own."""

FILE = "telemetry.jsonl"

LINES = "telemetry-{}.jsonl.gz"
"""In the raw folder of a step on the laptop, for each node: the sampler's own lines."""


class Recording:
    """Samplers on the nodes of a server; they outlive the laptop's connection.

    Args:
        folder: of the step, by which the units of its samplers are named.
        metrics: node to the URL of the `/metrics` of the engine that it leads.
        longest: seconds after which they end by themselves, when no laptop comes back.
    """

    def __init__(
        self,
        play: Play,
        nodes: Sequence[str],
        folder: str,
        metrics: Mapping[str, str] | None = None,
        longest: float = 0.0,
    ) -> None:
        self.play = play
        self.longest = longest
        self.folder = folder
        self.unit = unit_of(folder)
        # Root's own: in the step's folder a link of the load generator's user would be followed.
        self.place = f"{PLACE}/{self.unit}"
        self.nodes = [node.name for node in play.nodes if node.name in nodes]
        self.metrics = metrics or {}

    def start(self) -> None:
        """Start to record; where that fails the user is told, and the cells are measured."""
        for name in self.nodes:
            try:
                self._start(name)
            except SparkClusterError as error:
                self.play.note(f"{name}: no telemetry: {error.message}", warning=True)

    def _start(self, name: str) -> None:
        session = self._session(name)
        done = session.run(["mkdir", "-p", self.place])
        if done.status != 0:
            raise Failed(done.stderr.strip() or f"mkdir ended with status {done.status}")
        session.request(
            "telemetry",
            unit=self.unit,
            file=f"{self.place}/{FILE}",
            metrics=self.metrics.get(name, ""),
            longest=self.longest,
        )

    def fetch(self, into: Path) -> None:
        """Bring the lines of all nodes to the laptop; what a node does not give is left out."""
        into.mkdir(parents=True, exist_ok=True)
        for name in self.nodes:
            try:
                found = dict(on_node.read(self._session(name), self.place, f"{FILE}*"))
                texts = (found[file] for file in sorted(found, reverse=True))  # oldest first
                lines = "".join(filter(None, texts)).encode(errors="replace")
                (into / LINES.format(name)).write_bytes(gzip.compress(lines))
            except SparkClusterError as error:
                self.play.note(f"{name}: its telemetry stays there: {error.message}", warning=True)

    def stop(self) -> None:
        """End the samplers; a node that does not answer ends its own later."""
        for name in self.nodes:
            with contextlib.suppress(SparkClusterError):
                self._session(name).run(["systemctl", "stop", f"{self.unit}.service"], timeout=30.0)

    def _session(self, node: str) -> Session:
        """Return the session of now: after a reboot of the node it is another one."""
        return self.play.connections.session(node)


def texts(step: Path) -> dict[str, str]:
    """Return the samplers' lines in the raw folder of a step, by node."""
    found = {}
    for path in sorted(step.glob(LINES.format("*"))):
        node = path.name.removeprefix("telemetry-").removesuffix(".jsonl.gz")
        try:
            with gzip.open(path) as packed:  # foreign input: no more than the sampler keeps
                found[node] = packed.read(KEPT_FILES * FILE_LIMIT).decode("utf-8", "replace")
        except (OSError, EOFError, zlib.error):
            continue  # cut while it was written; the next fetch brings it whole
    return found


def merge(run: Path) -> None:
    """Write the telemetry of a run from the lines of its steps; nothing where there are none."""
    steps = [step for step in (run / "raw").glob("*") if step.is_dir()]
    known = [read_lines(*one)[0] for step in steps for one in texts(step).items()]
    rows = [row for found in known for row in found]
    if rows:
        write_parquet(run / TELEMETRY, sorted(rows, key=lambda row: (row.time, row.node)))


def unit_of(folder: str) -> str:
    """Return the name of the unit that records for a step."""
    digest = hashlib.sha256(folder.encode()).hexdigest()[:10]
    plain = re.sub(r"[^A-Za-z0-9_-]", "-", folder).strip("-")[-70:]
    return f"spark-cluster-telemetry-{digest}-{plain}"
