"""The part of a run on the nodes: what is sent there, what is recorded, and what comes back.

What a node says of its files is foreign input: names, sizes and contents are bounded.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_cluster.bench.record import TELEMETRY
from spark_cluster.bench.telemetry import read_lines, write_parquet
from spark_cluster.errors import Failed, SparkClusterError
from spark_cluster.node import measure, own_program, paths
from spark_cluster.node.replies import decoded
from spark_cluster.node.telemetry import FILE_LIMIT, KEPT_FILES, PROGRAM, SamplerSettings
from spark_cluster.resources import Command, Directory, File, Resource
from spark_cluster.runner import wire
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Session

FOLDER = paths.BENCH
"""On the node; each run has a folder of its own, each server of it one below."""

ARCHIVE = "programs.pyz"
"""In a folder of a run: the programs that measure there. The name is not their hash: by its command
a unit is found again that was started by another version."""

MAIN, ASK = "spark_cluster.node.measure", "spark_cluster.node.completions"

MEASURED = 'test -e "$0" || exit 0; exec 9<"$0"; flock --shared --nonblock 9 || cat "$0"'
"""Prints the folder whose cells are being measured; nothing where none are."""

LARGEST_BYTES = 5 * 1024 * 1024
"""A larger file of a load generator is left on the node."""

MOST_BYTES = 1 << 30
"""Bytes that are taken from one server: the results of a suite are a hundredth of it."""

SLACK_S = 600.0
"""Seconds in addition to the limits of the cells: for waiting until the server answers."""

NAME_BYTES = 255
"""Longest name of a file, as on ext4 and APFS."""


def measuring(folder: str, plan: Mapping[str, Any], limit_s: float) -> list[Resource]:
    """Return the resources that measure the cells of one server: files, and a unit that goes on
    without the laptop.

    Args:
        folder: on the node.
        plan: `health` (URLs that answer with 200 while the servers are up), `user` (of the node, as
            whom load generators run) and `cells` (each with its `id`, `timeout_s`, of a run, and
            the fields of its `Measurement`), as `node/measure.py` reads them.
        limit_s: seconds that all of it may take.
    """
    place = folder.removeprefix(f"{FOLDER}/")
    parts = place.split("/")
    folders = ["/".join((FOLDER, *parts[:n])) for n in range(len(parts) + 1)]
    sent = {ARCHIVE: wire.archive(MAIN, ASK), measure.PLAN: json.dumps(plan, indent=1).encode()}
    return [
        *[Directory(one, mode=0o755, owner="root") for one in folders],
        *[File(f"{folder}/{name}", content=content) for name, content in sent.items()],
        Command(
            f"measure {place}",
            command(folder, MAIN),
            # Not by its exit status: a run that was stopped is begun again.
            creates=f"{folder}/{measure.COMPLETE}",
            long=True,
            timeout_s=limit_s,
        ),
    ]


def command(folder: str, module: str, *words: str) -> tuple[str, ...]:
    """Return the command that runs one of the programs in a folder of a run."""
    started = own_program.entry(f"{folder}/{ARCHIVE}", module)
    return ("python3", "-I", "-S", "-B", *started, folder, *words)


def measured(session: Session) -> str:
    """Return the folder whose cells are being measured on a node; empty where none are."""
    return session.run(["sh", "-c", MEASURED, measure.LOCK]).stdout.strip()


def stop(session: Session, folder: str) -> None:
    """Have the process that measures the cells of a folder end, the cell in progress included."""
    _do(session, "touch", f"{folder}/stop")


def may_go_on(session: Session, folder: str) -> None:
    """Take an earlier `stop` back."""
    _do(session, "rm", "-f", f"{folder}/stop")


def _do(session: Session, *argv: str) -> None:
    done = session.run(list(argv))
    if done.status != 0:
        why = done.stderr.strip() or f"status {done.status}"
        raise Failed(f"{' '.join(argv)}: {why}", where=session.node)


@dataclass(frozen=True)
class EndedCell:
    """A cell that the node has measured.

    Attributes:
        told: what the program that measures says of it; None where that is no JSON.
        files: that were copied, by name, with their text.
        too_large: files that were not copied.
    """

    told: Any
    files: Mapping[str, str]
    too_large: tuple[str, ...]


def fetch(
    session: Session, folder: str, cells: Collection[str], into: Path
) -> Iterator[tuple[str, EndedCell]]:
    """Copy what was measured of some cells from the node; yields those that have ended, by id.

    Raises:
        Failed: an answer of the node is not what was asked for.
    """
    total = 0
    for told, text in read(session, folder, "cells/*.json"):
        cell = told.removesuffix(".json")
        if cell not in cells:
            continue
        raw = dict(read(session, folder, f"raw/{cell}.*"))
        known = {name: _bytes(content) for name, content in raw.items() if content is not None}
        copied = {name: data for name, data in known.items() if len(data) <= LARGEST_BYTES}
        total += sum(map(len, copied.values()))
        if total > MOST_BYTES:
            raise Failed(f"{folder} holds more than {MOST_BYTES >> 20} MiB of results")
        files = {f"raw/{name}": data for name, data in copied.items()}
        for name, data in {**files, f"cells/{told}": _bytes(text or "")}.items():
            (into / name).parent.mkdir(parents=True, exist_ok=True)
            (into / name).write_bytes(data)
        texts = {name: data.decode() for name, data in copied.items()}
        yield cell, EndedCell(decoded(text or ""), texts, tuple(raw.keys() - copied.keys()))


def _bytes(text: str) -> bytes:
    """Return a node's text as it is written; a lone surrogate, which JSON may hold, is replaced."""
    return text.encode(errors="replace")


def read(session: Session, folder: str, pattern: str) -> Iterator[tuple[str, str | None]]:
    """Yield the name and the text of each regular file that a pattern matches, by name; None for
    one that is too large to be sent.

    The folder of the pattern may be another user's, who can put anything there: links, pipes and
    files with a second name are left out.

    Raises:
        Failed: they cannot be read, or the answer is not one about such files.
    """
    whole = f"{folder}/{pattern}"
    answer = session.request("gather", trees={"files": whole}, links=False)
    if why := answer["late"].get("files"):
        raise Failed(why, where=session.node)
    place = f"{whole.rpartition('/')[0]}/"
    for path, text in sorted(answer["trees"]["files"].items()):
        name = path.removeprefix(place)
        if not (path.startswith(place) and _is_name(name)):
            raise Failed(f"reading {whole}: it answers of {name[:80]!r}", where=session.node)
        yield name, text


def _is_name(text: str) -> bool:
    """Return whether a text can be the name of a file in a folder, here and on a screen."""
    is_short = len(text.encode(errors="replace")) <= NAME_BYTES
    return is_short and text not in ("", ".", "..") and "/" not in text and text.isprintable()


# -- telemetry, recorded on each node while cells are measured -------------------------------------

PLACE = paths.TELEMETRY
"""On every node; root's own."""

FILE = "telemetry.jsonl"

LONGEST_S = 7 * 24 * 3600.0
"""Seconds after which a sampler ends that no one has ended."""

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
        _do(session, "mkdir", "-p", self.place)
        settings = SamplerSettings(metrics=self.metrics.get(name, ""), file=f"{self.place}/{FILE}")
        longest = f"{min(self.longest, LONGEST_S):.0f}"
        words = [settings.word, f"{self.unit}.service", longest]
        done = session.run(words, program=f"{PROGRAM}:start_unit")
        if done.status != 0:
            raise Failed(f"its unit does not start: {done.stderr.strip()[-200:]}")

    def fetch(self, into: Path) -> None:
        """Bring the lines of all nodes to the laptop; what a node does not give is left out."""
        into.mkdir(parents=True, exist_ok=True)
        for name in self.nodes:
            try:
                found = dict(read(self._session(name), self.place, f"{FILE}*"))
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
    rows = [row for step in steps for one in texts(step).items() for row in read_lines(*one)]
    if rows:
        write_parquet(run / TELEMETRY, sorted(rows, key=lambda row: (row.time, row.node)))


def unit_of(folder: str) -> str:
    """Return the name of the unit that records for a step."""
    digest = hashlib.sha256(folder.encode()).hexdigest()[:10]
    plain = re.sub(r"[^A-Za-z0-9_-]", "-", folder).strip("-")[-70:]
    return f"spark-cluster-telemetry-{digest}-{plain}"
