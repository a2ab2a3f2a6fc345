"""Steps of a run with several replicas: servers next to each other, loaded at the same time.

Each replica is a cluster of its own on its part of the nodes, brought up as `up` does it, one after
the other. Its load generator runs on its first node; see `replica_worker` for why, and for how
they wait for each other without the laptop.
"""

from __future__ import annotations

import contextlib
import secrets
import shlex
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from spark_cluster.bench import (
    describe,
    generators,
    node_files,
    on_node,
    replica_split,
    startup_logs,
    vllm_job,
)
from spark_cluster.bench import run as alone
from spark_cluster.bench.expansion import Step
from spark_cluster.bench.reading import read_json
from spark_cluster.bench.record import CellResult, ReplicaServer, Setup
from spark_cluster.bench.replica_results import ReplicaPart, combined
from spark_cluster.bench.run import ROLE, BenchRun, engine_base
from spark_cluster.bench.run_telemetry import Recording
from spark_cluster.config.ports import REPLICAS
from spark_cluster.engine import admission, readiness
from spark_cluster.engine.deployment import Deployment
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.engine.nodes import groups
from spark_cluster.engine.programs import servers_there
from spark_cluster.engine.resolve import resolve
from spark_cluster.engine.result import Served
from spark_cluster.engine.start import guard
from spark_cluster.errors import Failed, Refused, SparkClusterError
from spark_cluster.node.bench.replica_group import MEETING
from spark_cluster.runner.connections import Connections
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Session
from spark_cluster.topology import Node

WAIT_S = 2.0
"""Seconds between two looks whether the nodes still measure."""


@dataclass(frozen=True)
class Replica:
    """A server of several, verified.

    Attributes:
        play: over its nodes.
        startup_s: seconds that it took to load.
    """

    play: Play
    node: Node
    served: Served
    startup_s: float


@dataclass(frozen=True)
class Loader:
    """A node with a load generator, also when it has left the run."""

    name: str
    user: str
    connections: Connections = field(repr=False)

    @property
    def session(self) -> Session:
        """Its agent of now: after a reboot it is another one."""
        return self.connections.session(self.name)


# -- the servers -----------------------------------------------------------------------------------


def bring_up(play: Play, step: Step) -> list[Replica]:
    """Bring the replicas up, each on its part of the nodes; returns none in check mode.

    Raises:
        Refused: there are too few nodes.
        SparkClusterError: one does not come up.
    """
    names = [node.name for node in sorted(play.nodes, key=lambda node: not node.is_head)]
    parts_of = groups(names, step.setup.each, step.setup.replicas)
    parts = [play.part(group) for group in parts_of]
    if not play.check:
        _clear(play, step, parts)
    found = []
    for number, part in enumerate(parts, 1):
        node = part.head
        play.note(f"replica {number} of {len(parts)}: {', '.join(n.name for n in part.nodes)}")
        before = play.seconds.get("load", 0.0)
        try:
            served = alone.bring_up(part, step)
        finally:
            play.failed_stage = part.failed_stage
        if served is not None:
            startup_s = round(play.seconds.get("load", 0.0) - before, 1)
            found.append(Replica(part, node, served, startup_s))
    return found


def _clear(play: Play, step: Step, parts: Sequence[Play]) -> None:
    """Take down what runs, unless it is these replicas: a part sees its own nodes only."""
    recipe = step.setup.served
    if recipe is None:
        raise Failed(f"recipe {step.setup.recipe} was not read")
    running = [readiness.container_state(part, SERVER) for part in parts]
    wanted = [resolve(recipe, part.inventory, part.nodes, step.setup.tp) for part in parts]
    if all(admission.serves(now, one.first) for now, one in zip(running, wanted, strict=True)):
        return
    states = [
        readiness.container_state(play, program, node.name)
        for node in play.nodes
        for program in (SERVER, RAY)
    ]
    if any(state.status != "absent" for state in states) or any(servers_there(play).values()):
        play.project.load_playbook("down").function(play)


def _describe(play: Play, run: BenchRun, step: Step, replicas: Sequence[Replica]) -> None:
    """Record what the servers are, and what runs on their nodes."""
    setups = [
        describe.setup_of(one.play, step.setup, one.served, one.startup_s) for one in replicas
    ]
    before = alone.recorded(run, step)
    earlier = before.vram if before is not None else ()
    known = before.logs if before is not None else ()
    logs = startup_logs.keep(play, run.folder, run.raw(step).name)
    servers = tuple(
        ReplicaServer(nodes=one.nodes, flags=one.flags, startup_s=one.startup_s) for one in setups
    )
    setup = setups[0].model_copy(
        update={
            "nodes": tuple(name for one in setups for name in one.nodes),
            "vram": (*earlier, *(reading for one in setups for reading in one.vram)),
            "startup_s": max(one.startup_s for one in replicas),
            "servers": servers,
            "logs": tuple(dict.fromkeys((*known, *logs))),
        }
    )
    nodes = [node for one in replicas for node in describe.nodes_of(one.play, one.served)]
    run.add_setup(setup, nodes)


# -- measuring -------------------------------------------------------------------------------------


def measure(play: Play, run: BenchRun, step: Step, replicas: Sequence[Replica]) -> None:
    """Measure the cells of a step on all replicas at once, and bring back what came of them.

    Raises:
        SparkClusterError: a server or a node was lost, or it was stopped; what was measured until
            then is in the record.
    """
    folder = run.on_node(step)
    _describe(play, run, step, replicas)
    jobs = jobs_of(run, step, replicas)
    names = [node.name for one in replicas for node in one.served.server.nodes]
    recording = Recording(play, names, folder, longest=jobs[0].limit_s)
    bases = {one.node.name: engine_base(one.served.server) for one in replicas}
    recording.metrics = {name: f"{base}/metrics" for name, base in bases.items()}
    loaders = [Loader(r.node.name, r.node.user, play.connections) for r in replicas]
    # First on all nodes, as this may take minutes on one of them, and the workers wait for each
    # other for a limited time.
    play.together(*[partial(one.play.apply, one.node, ROLE) for one in replicas])
    _let_them_meet(play, replicas)
    for loader in loaders:
        on_node.may_go_on(loader.session, folder, loader.user, again=True)
    recording.start()
    ended = threading.Event()

    def load() -> None:
        try:
            play.together(
                *[
                    partial(one.play.apply, one.node, job.resources)
                    for one, job in zip(replicas, jobs, strict=True)
                ]
            )
        finally:
            ended.set()

    try:
        _, peak = play.together(load, lambda: alone.vram_until(play, ended))
        run.add_vram(step.setup.id, describe.readings(peak, "under_load"))
    except BaseException:
        # What ended it is what the user needs to know; the rest is fetched when it is continued.
        with contextlib.suppress(SparkClusterError, OSError):
            _bring_back(play, run, step, recording, loaders)
        raise
    _bring_back(play, run, step, recording, loaders)


def _let_them_meet(play: Play, replicas: Sequence[Replica]) -> None:
    """Let the nodes of all replicas reach each other over the fabric, until `down`.

    Each was brought up as if it served alone: its firewall keeps out the nodes of the others, and
    with them their load generators.
    """
    nodes = {node.name: node for node in play.nodes}
    for one, deployment in zip(replicas, with_peers(replicas), strict=True):
        here = [nodes[node.name] for node in deployment.nodes]
        play.apply(here, guard(one.play, deployment))


def with_peers(replicas: Sequence[Replica]) -> list[Deployment]:
    """Return what each replica is, with the nodes of all of them behind its firewall."""
    found = [one.served.deployment for one in replicas]
    peers = tuple(node.name for one in found for node in one.nodes)
    return [replace(one, firewall={**one.firewall, "peers": peers}) for one in found]


def wait_command(folder: str) -> str:
    """Return what a shell does between two runs: it waits until all replicas have come so far."""
    file = shlex.quote(f"{folder}/{MEETING}")
    return f": > {file}; while [ -e {file} ]; do sleep 0.02; done"


def jobs_of(run: BenchRun, step: Step, replicas: Sequence[Replica]) -> list[on_node.Job]:
    """Return what each replica's node gets to measure its part of a step's cells."""
    address = replica_split.meeting_address([one.node for one in replicas])
    names, token = [one.node.name for one in replicas], secrets.token_hex(32)
    parts = [replica_split.share(cell, len(replicas)) for cell in step.cells]
    found = []
    for index, one in enumerate(replicas):
        job = alone.job_of(run, step, one.served.server, one.play, parts)
        wait = ["--post-run-cmd", wait_command(job.folder)]
        cells = tuple({**cell, "argv": [*cell["argv"], *wait]} for cell in job.cells)
        settings = {"index": index, "names": names, "address": address, "port": REPLICAS}
        found.append(replace(job, cells=cells, replicas={**settings, "token": token}))
    return found


# -- what the nodes have ---------------------------------------------------------------------------


def loaders_of(play: Play, run: BenchRun, step: Step) -> list[Loader]:
    """Return the nodes with a step's load generators, as far as they answer."""
    if step.setup.replicas == 1:
        names = [play.head.name]
    elif (setup := alone.recorded(run, step)) is not None and setup.servers:
        names = [server.nodes[0] for server in setup.servers]
    else:
        known = sorted(play.inventory.nodes.values(), key=lambda node: not node.is_head)
        try:
            found_groups = groups([n.name for n in known], step.setup.each, step.setup.replicas)
        except Refused:  # so it cannot have been measured
            found_groups = []
        names = [group[0] for group in found_groups]
    nodes = {node.name: node for node in play.nodes}
    found = [nodes[name] for name in names if name in nodes]
    owner = partial(generators.owner, run.suite)
    return [Loader(node.name, owner(node.user), play.connections) for node in found]


def is_measuring(play: Play, run: BenchRun, step: Step) -> bool:
    """Return True while a node measures cells of a step."""
    loaders = loaders_of(play, run, step)
    return any(on_node.is_measuring(loader.session, run.on_node(step)) for loader in loaders)


def stop(play: Play, run: BenchRun, step: Step) -> bool:
    """Have the nodes end what they measure of a step, the cell in progress included.

    Returns:
        Whether anything was being measured. Where nothing was, the load generator's container of a
        run that was killed is removed.
    """
    folder, measured = run.on_node(step), False
    for loader in loaders_of(play, run, step):
        if on_node.is_measuring(loader.session, folder):
            on_node.stop(loader.session, folder, loader.user)
            measured = True
        elif generators.is_vllm_bench(run.suite):
            vllm_job.remove_left(loader.session)
    return measured


def is_done_there(play: Play, run: BenchRun, step: Step) -> bool:
    """Wait for what the nodes still measure of a step; True when nothing of it is left then.

    Raises:
        Failed: another benchmark is running on one of them, or they do not come to an end.
    """
    loaders = loaders_of(play, run, step)
    _wait(play, run, step)
    for loader in loaders:
        if on_node.is_busy(loader.session):
            raise Failed(
                "another benchmark is running there",
                where=loader.name,
                hint="`spark-cluster bench attach` or `bench stop` with the folder of that run",
            )
    if alone.recorded(run, step) is None:
        return False
    fetch(play, run, step)
    return not run.left(step)


def _wait(play: Play, run: BenchRun, step: Step) -> None:
    """Wait until no node measures cells of a step, as long as these can take at most."""
    limit_s = generators.limit_s(run.suite, step.cells)
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
    if step.setup.replicas == 1:
        alone.fetch(play, run, step)
        return
    setup = alone.recorded(run, step)
    nodes = setup.nodes if setup is not None else ()
    loaders = loaders_of(play, run, step)
    _bring_back(play, run, step, Recording(play, nodes, run.on_node(step)), loaders)


def _bring_back(
    play: Play, run: BenchRun, step: Step, recording: Recording, loaders: Sequence[Loader]
) -> None:
    """Copy telemetry and results of the nodes that answer, and add what is complete."""
    folder, into = run.on_node(step), run.raw(step)
    recording.fetch(into)
    too_large: dict[str, list[str]] = {}
    measuring = False
    for loader in loaders:
        try:
            with node_files.files_of(play.connections, loader.name) as files:
                too_large[loader.name] = on_node.fetch(files, folder, into / loader.name)
            measuring |= on_node.is_measuring(loader.session, folder)
        except SparkClusterError as error:
            text = f"{loader.name}: its results stay there: {error.message}"
            play.note(text, warning=True)
    if not measuring:
        recording.stop()
    setup = alone.recorded(run, step)
    if setup is not None:
        _add(run, step, setup, too_large)


def _add(run: BenchRun, step: Step, setup: Setup, too_large: Mapping[str, list[str]]) -> None:
    """Add the cells whose parts are all on the laptop to the record.

    Of a node whose files were not all copied now, those that are here may be of two times.

    Args:
        too_large: node to what was left there, of those that were copied from.
    """
    found: list[CellResult] = []
    for cell in run.left(step):
        if cell.skip:
            continue
        parts = []
        for server in setup.servers:
            into = run.raw(step) / server.nodes[0]
            ended_cell = read_json(into / "cells" / f"{cell.id}.json")
            if isinstance(ended_cell, dict) and server.nodes[0] in too_large:
                part = replica_split.share(cell, len(setup.servers))
                missing = too_large[server.nodes[0]]
                results = alone.results_of(run, part, ended_cell, into, missing)
                parts.append(ReplicaPart(server.nodes[0], part, ended_cell, into / "raw", results))
        if parts and len(parts) == len(setup.servers):
            found += combined(cell, parts, run.suite.settings)
    run.add(alone.with_telemetry(run, step, found))
