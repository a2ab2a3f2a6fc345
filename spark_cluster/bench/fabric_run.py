"""`bench fabric` on the nodes: may it run now, which messages, the job, and what came of it.

A Ray that was started for it is ended by the nodes themselves when its laptop has gone: a timer of
systemd on each node ends it after a limit that no measurement reaches. It ends the Ray of its own
run and no other: one that `up` or a later run has made since has another label.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import statistics
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spark_cluster import __version__
from spark_cluster.bench import fabric_probe, on_node
from spark_cluster.bench.describe import link_mtus
from spark_cluster.bench.fabric_record import FabricNode, FabricRecord, Use, all_reduce, judged
from spark_cluster.config.topology import Node
from spark_cluster.engine import ray_cluster, vram
from spark_cluster.engine.deployment import Server
from spark_cluster.engine.names import RAY
from spark_cluster.engine.ray import MEASURING
from spark_cluster.engine.ray_cluster import ray_jobs
from spark_cluster.errors import Failed, Refused, SparkClusterError, UsageError
from spark_cluster.node import paths
from spark_cluster.plan.room import batched_tokens
from spark_cluster.plan.speed.serving import serving_of
from spark_cluster.runner.events import Progress
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Session

COMMAND = "bench fabric"

LIMIT_S = 600.0
"""Seconds after which the job ends by itself."""

SLACK_S = 60.0
"""Seconds in addition that the laptop waits, for Ray to start and end the job."""

LARGEST = 256 << 20
SWEEP = (*(8 * 4**power for power in range(13)), LARGEST)
"""Bytes of the messages: from what is latency alone to what is bandwidth alone."""

DTYPES = {"bfloat16": 2, "float16": 2, "half": 2, "float32": 4, "float": 4}
"""Bytes of an element of the activations."""

UNIT = "spark-cluster-fabric-end"

START_S = 600.0
"""Seconds for starting and ending Ray's programs, besides the time in which its nodes join."""

END = """\
if command -v docker >/dev/null; then
    docker container ls --all --quiet --filter "name=^/?$1$" --filter "label=$2=$3" |
        xargs --no-run-if-empty docker rm --force
fi
if grep --quiet --no-messages --fixed-strings --regexp="\\"$2\\": \\"$3\\"" "$4"; then
    systemctl disable --now "$1.service"
fi
"""
"""Ends the Ray of a run, as a container or as a unit; the file of a unit has its labels in JSON."""

ONCE = r"""\
if command -v docker >/dev/null && docker container inspect "$1" >/dev/null 2>&1; then
    docker update --restart no "$1" >/dev/null || exit
fi
if test -e "$2"; then
    systemctl --quiet disable "$1.service"
fi
"""
"""Keeps Ray from coming back with the node: its timer would not."""

ARM = 'systemctl stop "$0.timer" 2>/dev/null; exec systemd-run --unit "$0" "$@"'


def must_be_possible(play: Play, server: Server) -> None:
    """Look whether the nodes can be measured now.

    Raises:
        Refused: as `must_suit`, or the nodes are at work: a server or a job holds the GPUs' memory,
            and disturbs the figures.
    """
    ray_cluster.must_suit(server.recipe, len(server.nodes), COMMAND)
    ray_cluster.must_serve_nothing(play, server.nodes, COMMAND)
    ray_cluster.must_have_no_jobs(play, ray_cluster.running_jobs(play), end_jobs=None)
    for node in server.nodes:
        if on_node.measured(play.session(node)):
            raise Refused(
                "a benchmark is running there",
                where=node.name,
                hint="wait for its end, or `spark-cluster bench stop` with the folder of that run",
            )


def warn_of_others(play: Play) -> None:
    """Say which other programs hold GPU memory: they may be at work."""
    for reading in vram.sample(play.sessions):
        for process in reading.processes:
            play.note(
                f"{process.name} (pid {process.pid}) holds GPU memory on {reading.name}: if it is "
                "at work, it disturbs the figures",
                warning=True,
            )


def messages(server: Server, folder: Path) -> dict[int, Use]:
    """Return the sizes of the messages in bytes, with what of the model has that size.

    Args:
        folder: where the model's folder is looked for too.
    """
    found: dict[int, Use] = dict.fromkeys(SWEEP, "")
    try:
        geometry = serving_of(server.recipe, server.tp, folder).geometry
    except UsageError:  # a shape that is not known here
        return found
    given = str(server.launch.args.get("dtype", geometry.dtype))
    token = geometry.hidden * DTYPES.get(given, DTYPES["bfloat16"])
    found[token] = "one token"
    found[min(token * batched_tokens(server.launch), fabric_probe.GPU_BYTES)] = "prefill chunk"
    return dict(sorted(found.items()))


def command(addresses: Sequence[str | None], sizes: Iterable[int]) -> list[str]:
    """Return the job's command, which finds the program in its working folder.

    Args:
        addresses: of the nodes for Ray, the head first.
        sizes: of the messages, in the order in which they are measured.
    """
    asked = {"addresses": list(addresses), "sizes": list(sizes), "limit_s": LIMIT_S}
    return ["python3", Path(fabric_probe.__file__).name, json.dumps(asked)]


def measure(play: Play, server: Server, port: int, name: str) -> FabricRecord:
    """Run the job on a Ray cluster of the plan's nodes, and judge what it measured.

    Args:
        port: of Ray's dashboard.
        name: of the run; also the job's.

    Raises:
        Failed: the job failed, or it printed no result.
    """
    wanted = messages(server, play.project.folder)
    nodes = [node for node in play.nodes if node.name in server.node_names]
    nodes.sort(key=lambda node: not node.is_head)
    # The model's own messages come first: they are measured if anything is.
    order = sorted(wanted, key=lambda size: (not wanted[size], size))
    head, job = nodes[0].name, f"fabric-{name}"

    def show(line: str) -> None:
        play.bus.emit(Progress(head, "fabric", line))

    with ray_jobs(play, port) as jobs, tempfile.TemporaryDirectory() as folder:
        shutil.copy(fabric_probe.__file__, folder)
        words = command([node.fabric_ip for node in nodes], order)
        jobs.submit(words, name=job, working_dir=Path(folder))
        try:
            printed = jobs.wait(job, LIMIT_S + SLACK_S, show)
        except KeyboardInterrupt:
            jobs.stop(job)
            raise
    return judged(record_of(result_in(printed, head), server, nodes, wanted, name))


def result_in(printed: str, where: str = "") -> Mapping[str, Any]:
    """Return the result that a job has printed.

    Raises:
        Failed: there is none.
    """
    lines = [line for line in printed.splitlines() if line.startswith(fabric_probe.MARK)]
    try:
        found = json.loads(lines[-1].removeprefix(fabric_probe.MARK)) if lines else None
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Failed(
            "the job on Ray ended without a result",
            where=where,
            hint="run `bench fabric` again; `spark-cluster doctor` finds what is wrong with a node",
        )
    return found


def record_of(
    result: Mapping[str, Any],
    server: Server,
    nodes: Sequence[Node],
    wanted: Mapping[int, Use],
    name: str,
) -> FabricRecord:
    """Return the document of a job's result, which is foreign input.

    Raises:
        Failed: it is not what the program prints.
    """
    try:
        rows = [
            all_reduce(
                int(row["bytes"]),
                tuple(map(float, row["seconds"])),
                len(nodes),
                wanted.get(row["bytes"], ""),
            )
            for row in result["allreduce"]
        ]
        reported = {key: str(result[key]) for key in ("backend", "torch", "nccl", "ray")}
        return FabricRecord(
            id=name,
            spark_cluster=__version__,
            measured=datetime.now(UTC),
            recipe=server.recipe.name,
            model=server.recipe.model.name,
            image=server.image,
            nodes=tuple(_node(node, one) for node, one in zip(nodes, result["nodes"], strict=True)),
            allreduce=tuple(sorted(rows, key=lambda row: row.bytes)),
            left_out=tuple(sorted(map(int, result["left_out"]))),
            **reported,  # type: ignore[arg-type]
        )
    # pydantic's own is a ValueError; a text of what is nested deeply ends in a RecursionError.
    except (ArithmeticError, LookupError, TypeError, ValueError, RecursionError) as error:
        why = str(error).splitlines()[0]
        raise Failed(f"the job's result cannot be read: {why}", where=nodes[0].name) from None


def _node(node: Node, reported: Mapping[str, Any]) -> FabricNode:
    memory = reported["memory"]
    return FabricNode(
        name=node.name,
        device=str(reported["device"]),
        driver=node.facts.gpu.driver if node.facts.gpu else "",
        kernel=node.facts.kernel,
        mtu=min(link_mtus(node), default=None),
        hcas=tuple(link.hca for link in node.links if link.hca),
        copy_gb_s=_middle(memory["copy"]),
        triad_gb_s=_middle(memory["triad"]),
        nccl_log=tuple(map(str, reported["log"])),
    )


def _middle(rates: Sequence[float]) -> float:
    """The median in 10^9 bytes/s."""
    return float(f"{statistics.median(map(float, rates)) / 1e9:.6g}")


# -- the end of a Ray that was started for it ------------------------------------------------------


def end_limit_s(join_timeout_s: float) -> float:
    """Return the seconds after which Ray is ended.

    Args:
        join_timeout_s: of the recipe, for Ray's nodes.
    """
    return join_timeout_s + LIMIT_S + SLACK_S + START_S


def end_command(run: str) -> list[str]:
    """Return the command that ends the Ray of a run on a node."""
    return ["sh", "-c", END, "end", RAY, MEASURING, run, f"{paths.SYSTEMD_UNITS}/{RAY}.service"]


def arm(sessions: Iterable[Session], run: str, seconds: float) -> None:
    """Have each node end the Ray of a run after so many seconds, whatever becomes of the laptop.

    Raises:
        SparkClusterError: a node does not do so.
    """
    options = ["--quiet", "--collect", "--no-ask-password", f"--on-active={seconds:.0f}"]
    options += ["--timer-property=AccuracySec=10s", "--property=RuntimeMaxSec=120", "--"]
    for session in sessions:
        done = session.run(["sh", "-c", ARM, UNIT, *options, *end_command(run)])
        if done.status != 0:
            raise Failed(
                f"systemd-run: {done.stderr.strip()[:200] or f'status {done.status}'}",
                where=session.node,
                hint="`bench fabric` starts Ray only where the node ends it by itself",
            )


def start_no_more(sessions: Iterable[Session]) -> None:
    """Have no node start Ray again after a reboot or a power cut, of which no timer is left.

    Only when its nodes have joined: until then Ray's programs may have to be started again.

    Raises:
        SparkClusterError: a node does not do so.
    """
    for session in sessions:
        done = session.run(["sh", "-c", ONCE, "once", RAY, f"{paths.SYSTEMD_UNITS}/{RAY}.service"])
        if done.status != 0:
            raise Failed(
                f"Ray would start again with the node: {done.stderr.strip()[:200]}",
                where=session.node,
            )


def disarm(sessions: Iterable[Session]) -> None:
    """Take the timers back; one that stays finds nothing to end."""
    for session in sessions:
        with contextlib.suppress(SparkClusterError):
            session.run(["systemctl", "stop", f"{UNIT}.timer"])
