"""A benchmark run and its record, and the steps of measuring one server.

What is measured already is never measured again: the record on the laptop says which cells have a
result, and the folder on the node has those that the laptop has not seen yet.
"""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from spark_cluster.bench import (
    acceptance,
    describe,
    environment,
    generators,
    node_files,
    on_node,
    run_telemetry,
    startup_logs,
)
from spark_cluster.bench.expansion import Expansion, PlannedCell, Step
from spark_cluster.bench.generator import At, Generator, Target
from spark_cluster.bench.planned_speed import predictions
from spark_cluster.bench.reading import moment, number, read_json
from spark_cluster.bench.reading import result as cell_result
from spark_cluster.bench.record import (
    CellResult,
    CheckResult,
    NodeRecord,
    Record,
    Setup,
    VramReading,
)
from spark_cluster.bench.run_folder import RECORD, save_record
from spark_cluster.bench.run_telemetry import Recording
from spark_cluster.bench.sampling import rows_of
from spark_cluster.bench.suite_schema import Suite
from spark_cluster.config.ports import LOOPBACK
from spark_cluster.engine import vram
from spark_cluster.engine.deployment import Deployment, Server
from spark_cluster.engine.endpoint import Endpoint
from spark_cluster.engine.engine import engine
from spark_cluster.engine.resolve import resolve
from spark_cluster.engine.result import Served
from spark_cluster.errors import Failed, InvalidFile, Refused, SparkClusterError
from spark_cluster.node.bench.measure import CLEAR, DOCKER_S
from spark_cluster.runner.play import Play
from spark_cluster.topology import Node

WAIT_S = 2.0
"""Seconds between two looks whether the head still measures."""

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


def left_out(step: Step) -> dict[str, str]:
    """Return the cells of a step that cannot be measured, with the reason."""
    return {cell.id: cell.skip for cell in step.cells if cell.skip}


def skipped(cell: PlannedCell, why: str) -> CellResult:
    return cell_result(cell, reasons=[why]).model_copy(update={"status": "skipped"})


def bring_up(play: Play, step: Step) -> Served | None:
    """Bring the step's server up with the playbook `up`, verified; None in check mode.

    Its memory under load is read while its cells are measured.
    """
    setup = step.setup
    if setup.served is None:
        raise Failed(f"recipe {setup.recipe} was not read")
    deployment = resolve(
        setup.served, play.inventory, play.nodes, setup.tp, replicas=setup.replicas
    )
    if setup.replicas > 1:
        deployment = replace(deployment, endpoint=on_loopback(deployment.endpoint))
    playbook = play.project.load_playbook("up")
    served: Served | None = playbook.function(play, deployment=deployment, load=False)
    return served


def on_loopback(endpoint: Endpoint) -> Endpoint:
    """Return the endpoint of replicas for the load generator next to it.

    It asks for no key and has no TLS, as a single server's own port on the loopback.
    """
    return replace(endpoint, host=LOOPBACK, api_key=None, tls=None, pem=None)


@dataclass(frozen=True)
class StartedServer:
    """A server that is up.

    Attributes:
        startup_s: seconds that it took to load.
        checks: of its answers.
    """

    served: Served
    startup_s: float | None = None
    checks: tuple[CheckResult, ...] = ()


def measure(play: Play, run: BenchRun, step: Step, server: StartedServer) -> None:
    """Measure the cells of a step on the head, and bring back what came of them.

    Raises:
        SparkClusterError: the server or the node was lost, or it was stopped; what was measured
            until then is in the record.
    """
    head = play.head  # it leaves the play when its cells end with an error
    session = play.session(head)
    folder = run.on_node(step)
    _describe(play, run, step, server)
    deployment = server.served.deployment
    job = job_of(run, step, deployment, play)
    metrics = {one.nodes[0].name: f"{engine_base(one)}/metrics" for one in deployment.servers}
    nodes = [node.name for node in deployment.nodes]
    recording = Recording(play, nodes, folder, metrics, job.limit_s)
    on_node.may_go_on(session, folder)
    recording.start()
    ended = threading.Event()

    def load() -> None:
        try:
            role = generators.of(run.suite).role
            play.apply(head, *([role] if role else []), job.resources)
        finally:
            ended.set()

    try:
        _, peak = play.together(load, lambda: vram_until(play, ended))
        run.add_vram(step.setup.id, describe.readings(peak, "under_load"))
    except BaseException:
        # What ended it is what the user needs to know; the rest is fetched when it is continued.
        with contextlib.suppress(SparkClusterError, OSError):
            _bring_back(play, head, run, step, recording)
        raise
    _bring_back(play, head, run, step, recording)


def _describe(play: Play, run: BenchRun, step: Step, server: StartedServer) -> None:
    """Record what the server is, what runs on its nodes, and what the plan predicts for it."""
    keys = [cell.key for cell in run.expansion.cells if cell.setup == step.setup.id]
    caching = run.suite.settings.prefix_caching
    predicted = predictions(play.project, step.setup, keys, prefix_caching=caching)
    logs = startup_logs.keep(play, run.folder, run.raw(step).name)
    served = server.served
    setup = describe.setup_of(play, step.setup, served, server.startup_s, logs)
    before = recorded(run, step)
    if before is not None:  # of an earlier turn, or before the run was interrupted
        kept = tuple(dict.fromkeys((*before.logs, *setup.logs)))
        setup = setup.model_copy(update={"vram": (*before.vram, *setup.vram), "logs": kept})
    setup = setup.model_copy(update={"predictions": predicted, "checks": server.checks})
    run.add_setup(setup, describe.nodes_of(play, served))
    run.add_version(served.versions.get("vllm", ""))
    base = load_base(served.deployment)
    run.add_round_trip(environment.round_trip_ms(play.session(play.head), base))


def vram_until(play: Play, ended: threading.Event) -> list[vram.NodeVram]:
    """Return the largest reading of GPU memory of each node while cells are measured."""
    return vram.peak_until(play.sessions, ended, partial(play.note, warning=True))


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


def job_of(run: BenchRun, step: Step, deployment: Deployment, play: Play) -> on_node.Job:
    """Return what the head gets to measure a step's cells."""
    server, generator, folder = deployment.first, generators.of(run.suite), run.on_node(step)
    target = Target(
        base_url=f"{load_base(deployment)}/v1",
        served_name=deployment.endpoint.model,
        model=server.recipe.model.name,
        tokenizer=server.recipe.model.node_path,
    )
    at = At(run.suite, deployment, target, folder, settings_of(play, generator))
    measured = tuple(cell for cell in step.cells if not cell.skip)
    cells = tuple(_planned(generator, at, cell) for cell in measured)
    health = tuple(engine_base(one) + engine(one.engine).health for one in deployment.servers)
    files = generator.files(at, measured)
    return on_node.Job(folder, health, cells, play.head.user, files)


def _planned(generator: Generator, at: At, cell: PlannedCell) -> dict[str, Any]:
    """Return a cell for node/bench/measure.py."""
    runs = generator.runs(at, cell)
    return {
        "id": cell.id,
        "runs": [asdict(one) for one in runs],
        "env": generator.env(at),
        "timeout_s": generator.limit_s(at.suite, cell) / len(runs),
        "as_root": generator.as_root(at),
    }


def engine_base(server: Server) -> str:
    """Return the URL of the engine itself; behind a proxy, where it asks for no key."""
    return server.endpoint.of_engine.path("")


def load_base(deployment: Deployment) -> str:
    """Return the URL to load: the engine's own, or that of the endpoint in front of replicas."""
    if deployment.is_one:
        return engine_base(deployment.first)
    return deployment.endpoint.path("")


def collect(play: Play, run: BenchRun, step: Step, head: Node) -> None:
    """Bring back the results that are on the node, and add them to the record."""
    into = run.raw(step)
    with node_files.files_of(play.connections, head.name) as files:
        too_large = on_node.fetch(files, run.on_node(step), into)
    found = []
    for cell in step.cells:
        ended = read_json(into / "cells" / f"{cell.id}.json")
        if isinstance(ended, dict):
            found += results_of(run, cell, ended, into, too_large)
    run.add(with_telemetry(run, step, found))


def with_telemetry(run: BenchRun, step: Step, found: Sequence[CellResult]) -> list[CellResult]:
    """Return results with what the telemetry says of them."""
    lines = run_telemetry.texts(run.raw(step))
    rows = list(rows_of(lines))
    engines = [list(acceptance.counters(text.splitlines())) for text in lines.values()]
    accepted = acceptance.with_acceptance(found, engines)
    return run_telemetry.flagged(accepted, rows, _nodes(run, step), step.setup.tp)


def is_measuring(play: Play, run: BenchRun, step: Step) -> bool:
    """Return True while the head measures cells of a step."""
    return on_node.measured(play.session(play.head)) == run.on_node(step)


def stop(play: Play, run: BenchRun, step: Step) -> bool:
    """Have the head end what it measures of a step, the cell in progress included.

    Returns:
        Whether anything was being measured. Where nothing was, the load generator's container of a
        run that was killed is removed.
    """
    session, folder = play.session(play.head), run.on_node(step)
    busy = on_node.measured(session)
    if busy == folder:
        on_node.stop(session, folder)
    elif not busy:
        session.run(list(CLEAR), timeout=DOCKER_S)
    return busy == folder


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
    if recorded(run, step) is None:
        return False
    fetch(play, run, step)
    return not run.left(step)


def _wait(play: Play, run: BenchRun, step: Step) -> None:
    """Wait until the head measures no cells of a step, as long as these can take at most."""
    generator = generators.of(run.suite)
    limits = (generator.limit_s(run.suite, cell) for cell in step.cells)
    limit_s = sum(limits) + on_node.SLACK_S
    deadline = time.monotonic() + limit_s
    if is_measuring(play, run, step):
        play.note("the nodes are still measuring; this waits for them")
    while is_measuring(play, run, step):
        if time.monotonic() > deadline:
            raise Failed(
                f"the nodes still measure {step.setup.id} after {limit_s / 3600:.1f} hours, more "
                "than its cells can take",
                hint=f"`spark-cluster bench stop {run.folder}`, then `bench attach` again",
            )
        time.sleep(WAIT_S)


def fetch(play: Play, run: BenchRun, step: Step) -> None:
    """Bring back what is on the nodes of a step; samplers with nothing left to sample are ended."""
    recording = Recording(play, _nodes(run, step), run.on_node(step))
    _bring_back(play, play.head, run, step, recording)


def _bring_back(play: Play, head: Node, run: BenchRun, step: Step, recording: Recording) -> None:
    """Copy telemetry and results; what goes on without the laptop is recorded on."""
    session = play.connections.session(head.name)  # after a reboot it is another one
    recording.fetch(run.raw(step))
    if on_node.measured(session) != run.on_node(step):
        recording.stop()
    collect(play, run, step, head)


def results_of(
    run: BenchRun, cell: PlannedCell, ended: dict[str, object], into: Path, too_large: list[str]
) -> list[CellResult]:
    """Return what came of a cell that the node has measured.

    Args:
        ended: what the worker says of it.
        into: the laptop's copy of the node's folder.
        too_large: files that were not copied.
    """
    log = into / "raw" / f"{cell.id}.log"
    output = log.read_text("utf-8", "replace") if log.is_file() else ""
    names = tuple(
        str(path.relative_to(run.folder)) for path in sorted((into / "raw").glob(f"{cell.id}.*"))
    )
    found = generators.of(run.suite).results(run.suite, cell, into / "raw", output, names)
    error = str(ended.get("error") or "")
    written = (name for name in too_large if not name.endswith(".log"))
    if any(name.startswith(f"raw/{cell.id}.") for name in written):
        error = "its result is too large to be copied; it is still on the node"
    times = {name: moment(number(ended.get(name))) for name in ("started", "finished")}
    changed: dict[str, object] = {**times}
    if error:
        changed |= {"status": "failed", "reason": error, "metrics": {}}
    return [result.model_copy(update=changed) for result in found]


def take_down(play: Play, run: BenchRun, step: Step) -> None:
    """Stop the server, verify that its memory is free again, and record that."""
    stopped = play.project.load_playbook("down").function(play)
    if stopped is not None:
        run.add_vram(step.setup.id, describe.readings(stopped.now, "after"))


def recorded(run: BenchRun, step: Step) -> Setup | None:
    """Return the record of a step's server; None before it was up."""
    return next((s for s in run.record.setups if s.id == step.setup.id), None)


def _nodes(run: BenchRun, step: Step) -> tuple[str, ...]:
    setup = recorded(run, step)
    return setup.nodes if setup is not None else ()
