"""A benchmark run and its record.

What is measured already is never measured again: the record on the laptop says which cells have a
result, and the folder on the node has those that the laptop has not seen yet.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from spark_cluster.bench import generators, on_node
from spark_cluster.bench.expansion import Expansion, PlannedCell, Step
from spark_cluster.bench.record import CellResult, NodeRecord, Record, Setup, VramReading
from spark_cluster.bench.run_folder import RECORD, save_record
from spark_cluster.bench.suite import Suite
from spark_cluster.errors import InvalidFile

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


@dataclass
class BenchRun:
    """A run, and its record so far.

    Attributes:
        folder: on the laptop.

    Raises:
        InvalidFile: the record's id is no plain name, and cannot be that of folders on nodes.
    """

    record: Record
    suite: Suite
    expansion: Expansion
    folder: Path

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.record.id):
            raise InvalidFile(
                f"id: {self.record.id[:40]!r} is not the id of a run",
                where=str(self.folder / RECORD),
                hint="letters, digits, '-', '_' and '.': folders on the nodes have this name",
            )

    @property
    def pending(self) -> list[Step]:
        """The steps that have cells without a result."""
        return [step for step in self.expansion.steps if self.left(step)]

    def left(self, step: Step) -> list[PlannedCell]:
        """Return the cells of a step without a result."""
        done = {cell.id for cell in self.record.cells}
        return [cell for cell in step.cells if cell.id not in done]

    def on_node(self, step: Step) -> str:
        """Return the folder of a step on the node."""
        turn = f"-t{step.turn}" if step.turn > 1 else ""
        stage = self.expansion.steps.index(step)
        return f"{on_node.FOLDER}/{self.record.id}/{stage:03}-{step.setup.id}{turn}"

    def raw(self, step: Step) -> Path:
        """Return the folder of what a step's load generator and samplers wrote, on the laptop."""
        return self.folder / "raw" / self.on_node(step).rpartition("/")[2]

    def recorded(self, step: Step) -> Setup | None:
        """Return the record of a step's server; None before it was up."""
        return next((setup for setup in self.record.setups if setup.id == step.setup.id), None)

    def nodes(self, step: Step) -> tuple[str, ...]:
        """Return the names of the nodes that a step was measured on; none before it was up."""
        setup = self.recorded(step)
        return setup.nodes if setup is not None else ()

    # -- what comes of it ------------------------------------------------------------------------

    def add(self, cells: Sequence[CellResult]) -> None:
        """Add results and save; a cell that has one keeps it."""
        known = {cell.id for cell in self.record.cells}
        new = tuple(cell for cell in cells if cell.id not in known)
        place = {cell.id: number for number, cell in enumerate(self.expansion.cells)}
        found = (*self.record.cells, *new)  # those of a context's prefill follow their cell
        ordered = sorted(found, key=lambda c: place.get(c.id.removesuffix("-ctx"), len(place)))
        self._change(cells=tuple(ordered))

    def add_setup(self, setup: Setup, nodes: Sequence[NodeRecord]) -> None:
        """Add a server, or take the newer record of it, and save."""
        setups = {s.id: s for s in self.record.setups} | {setup.id: setup}
        known = {n.name: n for n in self.record.nodes} | {n.name: n for n in nodes}
        self._change(setups=tuple(setups.values()), nodes=tuple(known.values()))

    def add_version(self, vllm: str) -> None:
        """Note a version of vLLM, where its own load generator measures, and save.

        Args:
            vllm: empty where it is not known.
        """
        if generators.of(self.suite).engine == "vllm":
            versions = {*self.record.tool.version.split(", "), vllm} - {""}
            version = ", ".join(sorted(versions))
            self._change(tool=self.record.tool.model_copy(update={"version": version}))

    def add_vram(self, setup: str, found: Sequence[VramReading]) -> None:
        """Add readings of GPU memory to a server, and save."""
        setups = tuple(
            s.model_copy(update={"vram": (*s.vram, *found)}) if s.id == setup else s
            for s in self.record.setups
        )
        self._change(setups=setups)

    def add_round_trip(self, ms: float | None) -> None:
        """Note the time from the load generator to the server and back, and save."""
        if ms is not None:
            self._change(round_trip_ms=ms)

    def end(self, status: str) -> None:
        """Note how the run ended, and save."""
        self._change(status=status, finished=datetime.now(UTC))

    def _change(self, **what: object) -> None:
        self.record = self.record.model_copy(update=what)
        save_record(self.record, self.folder)
