"""A run and its steps, each measured by the head: begun, waited for, stopped, and brought back.

What is measured already is never measured again: the record on the laptop says which cells have a
result, and the folder on the node has those that the laptop has not seen yet.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from spark_cluster.bench import describe, generators, on_node
from spark_cluster.bench.expansion import At, Expansion, Generator, PlannedCell, Step
from spark_cluster.bench.on_node import Recording
from spark_cluster.bench.record import (
    RECORD,
    CellResult,
    NodeRecord,
    Record,
    Setup,
    VramReading,
    moment,
    number,
    save_record,
)
from spark_cluster.bench.suite import Suite
from spark_cluster.bench.telemetry import read_lines, with_telemetry
from spark_cluster.config.topology import Node
from spark_cluster.engine import vram
from spark_cluster.engine.deployment import Deployment, Server
from spark_cluster.engine.engine import engine
from spark_cluster.errors import Failed, InvalidFile, Refused, SparkClusterError
from spark_cluster.node.measure import CLEAR, DOCKER_S
from spark_cluster.runner.play import Play

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
        """Note how the run ended, and save; what was complete before stays as it is."""
        if (self.record.status, status) != ("complete", "complete"):
            self._change(status=status, finished=datetime.now(UTC))

    def _change(self, **what: object) -> None:
        self.record = self.record.model_copy(update=what)
        save_record(self.record, self.folder)


WAIT_S = 2.0
"""Seconds between two looks whether the head still measures."""


def measure(play: Play, run: BenchRun, step: Step, deployment: Deployment) -> None:
    """Measure the cells of a step on the head, and bring back what came of them.

    Raises:
        SparkClusterError: the server or the node was lost, or it was stopped; what was measured
            until then is in the record.
    """
    head = play.head  # it leaves the play when its cells end with an error
    session = play.session(head)
    folder = run.on_node(step)
    limit_s, plan = _limit_s(run, step), plan_of(run, step, deployment, play)
    metrics = {one.nodes[0].name: f"{engine_base(one)}/metrics" for one in deployment.servers}
    nodes = [node.name for node in deployment.nodes]
    recording = Recording(play, nodes, folder, metrics, limit_s)
    on_node.may_go_on(session, folder)
    recording.start()
    role = generators.of(run.suite).role
    work = on_node.measuring(folder, plan, limit_s)
    load = partial(play.apply, head, *([role] if role else []), work)
    try:
        _, peak = vram.peak_while(play, load)
        run.add_vram(step.setup.id, describe.readings(peak, "under_load"))
    except BaseException:
        # What ended it is what the user needs to know; the rest is fetched when it is continued.
        with contextlib.suppress(SparkClusterError, OSError):
            _bring_back(play, head, run, step, recording)
        raise
    _bring_back(play, head, run, step, recording)


def settings_of(play: Play, generator: Generator) -> Any:
    """Return the settings of a generator's role on the head; None where it has no role.

    Raises:
        Refused: the role is set to a version whose results are not read.
    """
    if not generator.role:
        return None
    role = play.project.load_role(generator.role)
    settings: Any = role.settings_for(play.inventory.nodes[play.head.name])
    if settings.version != generator.version:
        raise Refused(
            f"{generator.role}.version is {settings.version}; only results of {generator.version} "
            "are read",
            hint=f"take `version` out of the settings of {generator.role}",
        )
    return settings


def plan_of(run: BenchRun, step: Step, deployment: Deployment, play: Play) -> dict[str, Any]:
    """Return what the head gets to measure a step's cells."""
    generator, folder = generators.of(run.suite), run.on_node(step)
    base, settings = f"{load_base(deployment)}/v1", settings_of(play, generator)
    at = At(run.suite, deployment, base, folder, settings)
    cells = []
    for cell in step.measurable:
        how = generator.measurement(at, cell)
        each_s = generator.limit_s(run.suite, cell) / len(how.runs)
        cells.append({"id": cell.id, "timeout_s": each_s, **asdict(how)})
    servers = deployment.servers
    health = tuple(engine_base(one) + engine(one.recipe.engine).health for one in servers)
    return {"health": health, "cells": cells, "user": play.head.user}


def _limit_s(run: BenchRun, step: Step) -> float:
    """Return the seconds that all cells of a step may take."""
    limits = (generators.of(run.suite).limit_s(run.suite, cell) for cell in step.measurable)
    return sum(limits) + on_node.SLACK_S


def engine_base(server: Server) -> str:
    """Return the URL of the engine itself; behind a proxy, where it asks for no key."""
    return server.endpoint.of_engine.path("")


def load_base(deployment: Deployment) -> str:
    """Return the URL to load: the engine's own, or that of the endpoint in front of replicas."""
    if deployment.is_one:
        return engine_base(deployment.first)
    return deployment.endpoint.path("")


def measured(play: Play, run: BenchRun) -> tuple[str, Step | None]:
    """Return the folder whose cells the head measures now, and the step of the run that it is of;
    empty and None where it measures none, or none of this run."""
    folder = on_node.measured(play.session(play.head))
    return folder, next((step for step in run.pending if run.on_node(step) == folder), None)


def stop(play: Play, run: BenchRun) -> Step | None:
    """Have the head end what it measures of a run, the cell in progress included.

    Returns:
        The step that was being measured. Where nothing was, the load generator's container of a run
        that was killed is removed.
    """
    session, (folder, step) = play.session(play.head), measured(play, run)
    if step is not None:
        on_node.stop(session, folder)
        Recording(play, run.nodes(step), folder).stop()
    elif not folder:
        session.run(list(CLEAR), timeout=DOCKER_S)
    return step


def is_done_there(play: Play, run: BenchRun, step: Step) -> bool:
    """Wait for what the head still measures of a step; True when nothing of it is left then.

    Raises:
        Failed: another benchmark is running there, or it does not come to an end.
    """
    _wait(play, run, step)
    if on_node.measured(play.session(play.head)):
        raise Failed(
            "another benchmark is running there",
            where=play.head.name,
            hint="`spark-cluster bench attach` or `bench stop` with the folder of that run",
        )
    if run.recorded(step) is None:
        return False
    fetch(play, run, step)
    return not run.left(step)


def _wait(play: Play, run: BenchRun, step: Step) -> None:
    """Wait until the head measures no cells of a step, as long as these can take at most."""
    limit_s = _limit_s(run, step)
    deadline = time.monotonic() + limit_s
    is_told = False
    while on_node.measured(play.session(play.head)) == run.on_node(step):
        if not is_told:
            play.note("the nodes are still measuring; this waits for them")
            is_told = True
        if time.monotonic() > deadline:
            raise Failed(
                f"the nodes still measure {step.setup.id} after {limit_s / 3600:.1f} hours, more "
                "than its cells can take",
                hint=f"`spark-cluster bench stop {run.folder}`, then `bench attach` again",
            )
        time.sleep(WAIT_S)


def fetch(play: Play, run: BenchRun, step: Step) -> None:
    """Bring back what is on the nodes of a step; samplers with nothing left to sample are ended."""
    recording = Recording(play, run.nodes(step), run.on_node(step))
    _bring_back(play, play.head, run, step, recording)


def _bring_back(play: Play, head: Node, run: BenchRun, step: Step, recording: Recording) -> None:
    """Copy telemetry and results, and add them to the record; what goes on without the laptop is
    recorded on."""
    session = play.connections.session(head.name)  # after a reboot it is another one
    into, folder = run.raw(step), run.on_node(step)
    recording.fetch(into)
    if on_node.measured(session) != folder:
        recording.stop()
    left = {cell.id: cell for cell in run.left(step)}
    found = []
    for id, ended in on_node.fetch(session, folder, left.keys(), into):
        if isinstance(ended.told, dict):
            found += results_of(run, left[id], ended, into / "raw")
    rows = [row for one in on_node.texts(into).items() for row in read_lines(*one)]
    run.add(with_telemetry(found, rows, run.nodes(step), step.setup.tp))


def results_of(
    run: BenchRun, cell: PlannedCell, ended: on_node.EndedCell, raw: Path
) -> list[CellResult]:
    """Return what came of a cell that the node has measured.

    Args:
        raw: folder of its files on the laptop.
    """
    error = str(ended.told.get("error") or "")
    if any(not name.endswith(".log") for name in ended.too_large):
        error = "its result is too large to be copied; it is still on the node"
    files = (str((raw / name).relative_to(run.folder)) for name in sorted(ended.files))
    times = {name: moment(number(ended.told.get(name))) for name in ("started", "finished")}
    changed: dict[str, object] = {**times, "raw": tuple(files)}
    if error:
        changed |= {"status": "failed", "reason": error, "metrics": {}}
    found = generators.of(run.suite).results(run.suite, cell, ended.files)
    return [result.model_copy(update=changed) for result in found]
