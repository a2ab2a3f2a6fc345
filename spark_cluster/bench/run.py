"""A benchmark run: step by step a server is brought up, measured, and taken down.

What is measured already is never measured again: the record on the laptop says which cells have a
result, and the folder on the node has those that the laptop has not seen yet.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spark_cluster.bench import benchy, describe, on_node, run_telemetry
from spark_cluster.bench.expansion import Expansion, PlannedCell, Step
from spark_cluster.bench.planned_speed import predictions
from spark_cluster.bench.reading import read_json
from spark_cluster.bench.reading import result as cell_result
from spark_cluster.bench.record import CellResult, NodeRecord, Record, Setup, VramReading
from spark_cluster.bench.run_folder import save_record
from spark_cluster.bench.run_telemetry import Recording
from spark_cluster.bench.suite_schema import Suite
from spark_cluster.errors import Failed, Refused, SparkClusterError
from spark_cluster.inference.engine import engine
from spark_cluster.runner.play import Play
from spark_cluster.serving import vram
from spark_cluster.serving.plan import ServePlan
from spark_cluster.serving.result import Served
from spark_cluster.topology import Node

ROLE = "llama_benchy"

CELL_S = 3600.0
"""Seconds that a cell may take: at 7 tokens a second 25,000 tokens of answers."""

VRAM_S = 5.0
"""Seconds between two readings of GPU memory under load."""

WAIT_S = 2.0
"""Seconds between two looks whether the node still measures."""

BOOK = "home/.cache/llama-benchy/cc6a0b5782734ee3b9069aa3b64cc62c.txt"
"""Where llama-benchy looks for the text of its prompts before it downloads it (source:
llama-benchy); below the folder that is its home."""


@dataclass
class BenchRun:
    """A run, and its record so far.

    Attributes:
        folder: on the laptop.
    """

    record: Record
    suite: Suite
    expansion: Expansion
    folder: Path

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

    def add_vram(self, setup: str, found: Sequence[VramReading]) -> None:
        """Add readings of GPU memory to a server, and save."""
        setups = tuple(
            s.model_copy(update={"vram": (*s.vram, *found)}) if s.id == setup else s
            for s in self.record.setups
        )
        self._change(setups=setups)

    def end(self, status: str) -> None:
        """Note how the run ended, and save."""
        self._change(status=status, finished=datetime.now(UTC))

    def _change(self, **what: object) -> None:
        self.record = self.record.model_copy(update=what)
        save_record(self.record, self.folder)


def left_out(step: Step) -> dict[str, str]:
    """Return the cells of a step that cannot be measured, with the reason."""
    return {cell.id: cell.skip for cell in step.cells if cell.skip}


def _skipped(cell: PlannedCell, why: str) -> CellResult:
    return cell_result(cell, reasons=[why]).model_copy(update={"status": "skipped"})


def bring_up(play: Play, step: Step) -> Served | None:
    """Bring the step's server up with the playbook `up`, verified; None in check mode."""
    playbook = play.project.load_playbook("up")
    served: Served | None = playbook.function(play, recipe=step.setup.served, tp=step.setup.tp)
    return served


def measure(
    play: Play, run: BenchRun, step: Step, served: Served, startup_s: float | None = None
) -> None:
    """Measure the cells of a step on the head, and bring back what came of them.

    Args:
        startup_s: seconds that the server took to load.

    Raises:
        SparkClusterError: the server or the node was lost, or it was stopped; what was measured
            until then is in the record.
    """
    head = play.head  # a server that ends takes it out of the play
    session = play.session(head)
    folder = run.on_node(step)
    _describe(play, run, step, served, startup_s)
    metrics = f"{engine_base(served.plan)}/metrics"
    job = job_of(run, step, served.plan, play)
    nodes = [node.name for node in served.plan.nodes]
    recording = Recording(play, nodes, folder, metrics, job.limit_s)
    recording.start()
    on_node.may_go_on(session, folder, head.user)
    ended = threading.Event()

    def load() -> None:
        try:
            play.apply(head, ROLE, job.resources)
        finally:
            ended.set()

    try:
        _, peak = play.together(load, lambda: vram_until(play, ended))
        run.add_vram(step.setup.id, describe.readings(peak, "under_load"))
    finally:
        _bring_back(play, run, step, recording, head)


def _describe(
    play: Play, run: BenchRun, step: Step, served: Served, startup_s: float | None
) -> None:
    """Record what the server is, what runs on its nodes, and what the plan foretells of it."""
    keys = [cell.key for cell in run.expansion.cells if cell.setup == step.setup.id]
    caching = run.suite.settings.prefix_caching
    told = predictions(play.project, step.setup, keys, prefix_caching=caching)
    setup = describe.setup_of(play, step.setup, served, startup_s)
    before = recorded(run, step)
    if before is not None:  # of an earlier turn, or before the run was interrupted
        setup = setup.model_copy(update={"vram": (*before.vram, *setup.vram)})
    run.add_setup(setup.model_copy(update={"predictions": told}), describe.nodes_of(play, served))


def vram_until(play: Play, ended: threading.Event) -> list[vram.NodeVram]:
    """Return the largest reading of GPU memory of each node while cells are measured."""
    found: list[vram.NodeVram] = []
    try:
        while not ended.wait(VRAM_S):
            found = vram.peak(found, vram.sample(play.sessions))
    except SparkClusterError as error:  # no reason to lose what is being measured
        play.note(f"no further readings of GPU memory: {error.message}", warning=True)
    return found


def tool_of(play: Play) -> tuple[str, str]:
    """Return, on the head, the folder of the load generator and the text for its prompts.

    Raises:
        Refused: the role is set to a version whose results are not read.
    """
    role = play.project.load_role(ROLE)
    settings: Any = role.settings_for(play.inventory.nodes[play.head.name])
    if settings.version != benchy.VERSION:
        raise Refused(
            f"{ROLE}.version is {settings.version}; only results of {benchy.VERSION} are read",
            hint=f"take `version` out of the settings of {ROLE}",
        )
    return settings.path, settings.book


def job_of(
    run: BenchRun,
    step: Step,
    plan: ServePlan,
    play: Play,
    planned: Sequence[PlannedCell] | None = None,
) -> on_node.Job:
    """Return what the head gets to measure a step's cells.

    Args:
        planned: a replica's parts of the cells.
    """
    environment, book = tool_of(play)
    endpoint, folder = plan.endpoint, run.on_node(step)
    base = engine_base(plan)
    target = benchy.Target(
        base_url=f"{base}/v1",
        served_name=endpoint.model,
        model=plan.recipe.model.name,
        tokenizer=plan.recipe.model.node_path,
    )
    settings = run.suite.settings
    offline = benchy.OFFLINE if book else {}
    cells = tuple(
        {
            "id": cell.id,
            "argv": benchy.command(
                f"{environment}/bin/python",
                benchy.arguments(cell, target, settings, f"{folder}/raw"),
            ),
            "env": {"HOME": f"{folder}/home", **offline},
            "result": f"raw/{cell.id}.json",
            "timeout_s": CELL_S,
        }
        for cell in planned or step.cells
        if not cell.skip
    )
    health = base + engine(plan.recipe.engine).health
    return on_node.Job(folder, health, cells, {BOOK: book} if book else {}, play.head.user)


def engine_base(plan: ServePlan) -> str:
    """Return the URL of the engine itself; behind a proxy, where it asks for no key."""
    endpoint = plan.endpoint
    url = endpoint.engine_url if endpoint.engine_port else endpoint.url
    return url.removesuffix("/v1")


def collect(run: BenchRun, step: Step, play: Play, head: Node) -> None:
    """Bring back the results that are on the node, and add them to the record."""
    into = run.raw(step)
    too_large = on_node.fetch(play.session(head), run.on_node(step), into, head.user)
    found = []
    for cell in step.cells:
        told = read_json(into / "cells" / f"{cell.id}.json")
        if isinstance(told, dict):
            found += results_of(run, cell, told, into, too_large)
    rows = list(run_telemetry.rows(into))
    run.add(run_telemetry.flagged(found, rows, _nodes(run, step)))
    run_telemetry.write(run.folder)


def fetch(play: Play, run: BenchRun, step: Step) -> None:
    """Bring back what is on the nodes of a step; samplers with nothing left to sample are ended."""
    recording = Recording(play, _nodes(run, step), run.on_node(step))
    _bring_back(play, run, step, recording, play.head)


def _bring_back(play: Play, run: BenchRun, step: Step, recording: Recording, head: Node) -> None:
    """Copy telemetry and results; what goes on without the laptop is recorded on."""
    session = play.session(head)
    recording.fetch(run.raw(step))
    if not on_node.is_measuring(session, run.on_node(step)):
        recording.stop()
    collect(run, step, play, head)


def results_of(
    run: BenchRun, cell: PlannedCell, told: dict[str, object], into: Path, too_large: list[str]
) -> list[CellResult]:
    """Return what came of a cell that the node has measured.

    Args:
        told: what the worker says of it.
        into: the laptop's copy of the node's folder.
        too_large: files that were not copied.
    """
    log = into / "raw" / f"{cell.id}.log"
    output = log.read_text("utf-8", "replace") if log.is_file() else ""
    names = tuple(
        str(path.relative_to(run.folder)) for path in sorted((into / "raw").glob(f"{cell.id}.*"))
    )
    found = benchy.read_cell(cell, into / "raw", run.suite.settings, output=output, raw=names)
    error = str(told.get("error") or "")
    if {f"raw/{cell.id}.json", f"raw/{cell.id}.jsonl"} & set(too_large):
        error = "its result is too large to be copied; it is still on the node"
    times = {name: _moment(told.get(name)) for name in ("started", "finished")}
    changed: dict[str, object] = {**times}
    if error:
        changed |= {"status": "failed", "reason": error, "metrics": {}}
    return [result.model_copy(update=changed) for result in found]


def _moment(seconds: object) -> datetime | None:
    return datetime.fromtimestamp(seconds, UTC) if isinstance(seconds, (int, float)) else None


def take_down(play: Play, run: BenchRun, step: Step) -> None:
    """Stop the server, verify that its memory is free again, and record that."""
    stopped = play.project.load_playbook("down").function(play)
    if stopped is not None:
        run.add_vram(step.setup.id, describe.readings(stopped.now, "after"))


def recorded(run: BenchRun, step: Step) -> Setup | None:
    """Return the record of a step's server; None before it was up."""
    return next((s for s in run.record.setups if s.id == step.setup.id), None)


def _nodes(run: BenchRun, step: Step) -> tuple[str, ...]:
    found = recorded(run, step)
    return found.nodes if found is not None else ()


def must_be_as_before(run: BenchRun, step: Step) -> None:
    """Raise Refused when the recipe is another one than that of the cells that were measured."""
    before, now = recorded(run, step), step.setup.served
    if before is not None and now is not None and before.recipe_text != describe.text_of(now):
        raise Refused(
            f"recipe {before.recipe} was changed after this run measured cells of {before.id}",
            hint="undo the change, or begin a new run",
        )


def is_done_there(play: Play, run: BenchRun, step: Step) -> bool:
    """Wait for what the node still measures of a step; True when nothing of it is left then.

    Raises:
        Failed: another run is being measured.
    """
    session, folder = play.session(play.head), run.on_node(step)
    if on_node.is_measuring(session, folder):
        play.note("the node is still measuring; this waits for it")
    while on_node.is_measuring(session, folder):
        time.sleep(WAIT_S)
    if on_node.is_busy(session):
        raise Failed(
            "another run is being measured there",
            where=play.head.name,
            hint="`spark-cluster bench attach` or `bench stop` with the folder of that run",
        )
    if recorded(run, step) is None:
        return False
    fetch(play, run, step)
    return not run.left(step)


def _server(step: Step) -> tuple[str, int]:
    return step.setup.id, step.turn


def go_on(
    play: Play,
    run: BenchRun,
    *,
    keep: bool = False,
    measure_step: Callable[[Play, BenchRun, Step], None],
) -> None:
    """Measure all that has no result yet.

    Args:
        keep: the last server stays up.
        measure_step: brings the servers of a step up, and measures its cells.

    Raises:
        SparkClusterError: it cannot go on; the record says `failed`, and can be gone on with.
    """
    reasons = {id: why for step in run.pending for id, why in left_out(step).items()}
    if not play.check:
        tool_of(play)  # refused before a server is started
        run.add([_skipped(c, reasons[c.id]) for c in run.expansion.cells if c.id in reasons])
    steps = [s for s in run.pending if not all(cell.id in reasons for cell in s.cells)]
    try:
        for number, step in enumerate(steps, 1):
            play.note(f"server {number} of {len(steps)}: {step.setup.id}, {len(step.cells)} cells")
            measure_step(play, run, step)
            following = steps[number] if number < len(steps) else None
            if play.check or (following is None and keep):
                continue
            # Every turn of a pair has a start of its own.
            if following is None or _server(following) != _server(step):
                take_down(play, run, step)
    except KeyboardInterrupt:
        play.note(f"the node goes on measuring: `bench attach {run.folder}`, or `bench stop`")
        raise
    except (SparkClusterError, OSError):
        if not play.check:
            run.end("failed")
        raise
    if play.check:
        return
    left = sum(len(run.left(step)) for step in run.pending)
    run.end("failed" if left else "complete")
    if left:
        raise Failed(f"{left} cells have no result", hint="`bench attach` measures them")


def measure_step(play: Play, run: BenchRun, step: Step) -> None:
    """Bring the server of a step up and measure its cells; nothing where they are done already."""
    if not play.check:
        must_be_as_before(run, step)
        if is_done_there(play, run, step):
            return
    before = play.seconds.get("load", 0.0)
    served = bring_up(play, step)
    if served is None:
        return
    loaded = play.seconds.get("load", 0.0) - before
    with play.stage("measure"):
        measure(play, run, step, served, round(loaded, 1))
