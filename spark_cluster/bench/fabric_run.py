"""`bench fabric`: may it run now, which messages, the job, what came of it, and the verdict.

What the link and the memory of the nodes did is `fabric.json` of a folder, with the verdict: as
expected, or slow, with the known causes. `predict --calibrate` takes the link's figures from it.

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
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field

from spark_cluster import __version__
from spark_cluster.bench import fabric_probe, on_node
from spark_cluster.bench.describe import link_mtus
from spark_cluster.bench.record import Part, printable, read_document
from spark_cluster.config.topology import Node
from spark_cluster.engine import ray_cluster, vram
from spark_cluster.engine.deployment import Server
from spark_cluster.engine.link_check import DEGRADED_GBITS, GOOD_GBITS
from spark_cluster.engine.names import RAY
from spark_cluster.engine.ray import MEASURING
from spark_cluster.engine.ray_cluster import ray_jobs
from spark_cluster.errors import Failed, Refused, SparkClusterError, UsageError
from spark_cluster.issues.entries import catalogue, marks_in, recognise
from spark_cluster.node import paths
from spark_cluster.plan.estimate import MEASURED_NODES, Constants, carried, most_exchanges
from spark_cluster.plan.room import batched_tokens
from spark_cluster.plan.serving import serving_of
from spark_cluster.runner.events import Progress
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Session

FORMAT: Final = "spark-cluster.fabric.v1"
FILE = "fabric.json"
Text = Annotated[str, AfterValidator(printable)]
Rate = Annotated[float, Field(gt=0, lt=1e9, allow_inf_nan=False)]
Use = Literal["one token", "prefill chunk", ""]
Verdict = Literal["as expected", "slow", "not judged"]

EXPECTED_GB_S = (22.0, 24.0)
"""Bus bandwidth of NCCL over both twins, 10^9 bytes/s (source: measured-on-two-sparks)."""

SPARK_GPU = "GB10"
"""In the name of the device for which the figures are expected."""

TWINS = 2
"""Paths of about 100 Gb/s that one cable has."""

ONE_TWIN_GBITS = 112.0
"""The most that one twin carries, Gb/s: 111 with an RDMA MTU of 4096."""

GOOD_GB_S = TWINS * GOOD_GBITS / 8
DEGRADED_GB_S = TWINS * DEGRADED_GBITS / 8
ONE_TWIN_GB_S = ONE_TWIN_GBITS / 8

FULL_MTU = 9000
"""Of the link's interfaces; with a smaller one RDMA runs at an MTU of 1024."""

UNEVEN = 0.15
"""The nodes' memories differ by more than this share only when something is wrong with one."""


class AllReduce(Part):
    """All-reduces of one message size.

    Attributes:
        bytes: of the message that each node gives.
        use: what of the model has this size; empty for a size of the sweep.
        latency_us: of one, the median of `values_us`.
        bus_gb_s: 10^9 bytes/s that each node sends: bytes / latency * 2 (n - 1) / n for n nodes
            (source: nccl-tests-performance).
        values_us: of each repetition, the mean of its operations on the slowest node.
    """

    bytes: int = Field(gt=0, lt=1 << 40)
    use: Use = ""
    latency_us: Rate
    bus_gb_s: Rate
    values_us: tuple[Rate, ...] = Field(max_length=1000)


class FabricNode(Part):
    """A node and its memory.

    Attributes:
        device: the GPU as PyTorch names it, or CPU.
        mtu: of the link's interfaces, the smallest.
        hcas: RDMA devices of the link.
        copy_gb_s: of a copy, read and written bytes, 10^9 bytes/s, the median.
        triad_gb_s: of `a = b + 3 c`, the same (source: stream-benchmark).
        nccl_log: lines that say which network NCCL took.
    """

    name: Text
    device: Text
    driver: Text = ""
    kernel: Text = ""
    mtu: int | None = None
    hcas: tuple[Text, ...] = ()
    copy_gb_s: Rate
    triad_gb_s: Rate
    nccl_log: tuple[Text, ...] = Field(default=(), max_length=100)


class FabricIssue(Part):
    """A known issue that can be the cause; `spark-cluster explain --about ID` shows all of it."""

    id: Text
    title: Text
    found: Text
    cause: Text
    fix: Text


class FabricRecord(Part):
    """The results of `bench fabric`.

    Attributes:
        id: of the run that measured it.
        recipe, model, image: of the recipe whose image was used, and whose messages are named.
        backend: `nccl` on GPUs, `gloo` on CPUs.
        left_out: message sizes for which no time was left.
        reasons: for the verdict.
    """

    format: Literal["spark-cluster.fabric.v1"] = FORMAT
    id: Text
    spark_cluster: Text
    measured: datetime
    recipe: Text
    model: Text
    image: Text
    backend: Literal["nccl", "gloo"]
    torch: Text = ""
    nccl: Text = ""
    ray: Text = ""
    nodes: tuple[FabricNode, ...] = Field(min_length=2, max_length=64)
    allreduce: tuple[AllReduce, ...] = Field(min_length=1, max_length=200)
    left_out: tuple[int, ...] = Field(default=(), max_length=200)
    verdict: Verdict = "not judged"
    reasons: tuple[Text, ...] = ()
    issues: tuple[FabricIssue, ...] = ()

    def of_use(self, use: Use) -> AllReduce | None:
        """Return the all-reduce of a size that the model has."""
        return next((row for row in self.allreduce if row.use == use), None)

    @property
    def best_gb_s(self) -> float:
        """The highest bus bandwidth of all sizes, 10^9 bytes/s."""
        return max(row.bus_gb_s for row in self.allreduce)


def all_reduce(size: int, seconds: tuple[float, ...], nodes: int, use: Use = "") -> AllReduce:
    """Return the figures of a message size.

    Args:
        seconds: of one operation, for each repetition; at least one.
    """
    middle = statistics.median(seconds)
    sent = size * carried(nodes)
    return AllReduce(
        bytes=size,
        use=use,
        latency_us=round(middle * 1e6, 3),
        bus_gb_s=float(f"{sent / middle / 1e9:.6g}"),
        values_us=tuple(round(value * 1e6, 3) for value in seconds),
    )


def is_fabric(path: Path) -> bool:
    """Return whether a file, or a folder that has one, is such a document by its name."""
    return path.name == FILE or (path.is_dir() and (path / FILE).is_file())


def load_fabric(path: Path) -> FabricRecord:
    """Read the document from its folder or the file itself; it may be somebody else's.

    Raises:
        UsageError: there is none.
        InvalidFile: it is no such document.
    """
    path = path / FILE if path.is_dir() else path
    hint = "`spark-cluster bench fabric --out FOLDER` writes one"
    return read_document(path, FabricRecord, "a result of `bench fabric`", FORMAT, hint)


# -- the verdict -----------------------------------------------------------------------------------


Cause = tuple[str, str]
"""The id of a known issue that can be the cause, and what was seen of it."""


def judged(record: FabricRecord) -> FabricRecord:
    """Return the document with its verdict, reasons and known issues.

    Figures of gloo are of CPUs, and are not judged; nor are those of other GPUs than a Spark's.
    """
    why = _why_not(record)
    if why:
        return record.model_copy(update={"verdict": "not judged", "reasons": (why,)})
    reasons = [*_of_link(record), *_of_memory(record.nodes)]
    # Sockets make it slow whatever the figures are: the next model may have larger messages.
    seen = list(_of_logs(record.nodes))
    if reasons:
        seen += [*_of_nodes(record.nodes), *_by_figures(record, explained=bool(seen))]
    elif seen:
        reasons = [seen[0][1]]
    causes = dict(reversed(seen))
    verdict: Verdict = "slow" if reasons else "as expected"
    names = ",".join(node.name for node in record.nodes)
    issues = tuple(_issue(*cause, names) for cause in reversed(causes.items()))
    return record.model_copy(
        update={"verdict": verdict, "reasons": tuple(reasons), "issues": issues}
    )


def _why_not(record: FabricRecord) -> str:
    """Return why nothing is expected of such nodes; empty where they are Sparks."""
    if record.backend != "nccl":
        return "gloo on CPUs: nothing of it is what GPUs and RDMA do"
    others = sorted({node.device for node in record.nodes if SPARK_GPU not in node.device})
    return f"{', '.join(others)}: what to expect is known of Sparks only" if others else ""


def _issue(id: str, found: str, nodes: str) -> FabricIssue:
    known = catalogue()[id]
    return FabricIssue(
        id=known.id,
        title=known.title,
        found=found,
        cause=known.cause,
        fix=known.fix_on(nodes),
    )


def _of_link(record: FabricRecord) -> Iterator[str]:
    """Yield why the link is slow."""
    low, high = EXPECTED_GB_S
    best = record.best_gb_s
    if best < GOOD_GB_S:
        yield f"{best:.1f} GB/s between the nodes, {low:g} to {high:g} are expected"
    nodes = len(record.nodes)
    token = record.of_use("one token")
    slowest = most_exchanges(nodes) * Constants().allreduce_high_us
    if token is not None and token.latency_us > slowest:
        known = (
            "were seen elsewhere" if nodes == MEASURED_NODES else f"are expected of {nodes} nodes"
        )
        yield (
            f"an all-reduce of one token takes {token.latency_us:.0f} us, "
            f"at most {slowest:.0f} {known}"
        )


def _of_memory(nodes: Sequence[FabricNode]) -> Iterator[str]:
    """Yield why memory is slow; no node's is less than what decoding itself gets of it."""
    usual = Constants()
    least = usual.bandwidth * usual.eta_moe / 1e9
    rates = {node.name: max(node.copy_gb_s, node.triad_gb_s) for node in nodes}
    for name, best in rates.items():
        if best < least:
            yield (
                f"the memory of {name} does {best:.0f} GB/s of {usual.bandwidth / 1e9:.0f}, "
                f"at least {least:.0f} are expected"
            )
    slow, fast = min(rates, key=rates.__getitem__), max(rates, key=rates.__getitem__)
    if rates[slow] < (1 - UNEVEN) * rates[fast]:
        yield f"the memory of {slow} is slower than that of {fast}: they should be alike"


def _of_nodes(nodes: Sequence[FabricNode]) -> Iterator[Cause]:
    """Yield what the nodes' own facts show."""
    for node in nodes:
        if len(node.hcas) < TWINS:
            found = ", ".join(node.hcas) or "none"
            yield "twin-without-address", f"{node.name}: RDMA devices of the link: {found}"
        if node.mtu is not None and node.mtu < FULL_MTU:
            yield "link-small-frames", f"{node.name}: MTU {node.mtu}"


def _by_figures(record: FabricRecord, *, explained: bool) -> Iterator[Cause]:
    """Yield what has such figures; of the link only where nothing explains them already."""
    best = record.best_gb_s
    seen = f"{best:.1f} GB/s"
    one_path = any(len(node.hcas) < TWINS for node in record.nodes)
    if explained or best >= GOOD_GB_S or (one_path and best > DEGRADED_GB_S):
        pass
    elif best <= DEGRADED_GB_S:
        yield "link-at-13-gbps", seen
        yield "engine-on-lan", seen
    elif best <= ONE_TWIN_GB_S:
        for issue in ("nccl-one-twin", "twins-in-one-subnet", "link-half-up", "link-at-100g"):
            yield issue, f"{seen}, what one twin alone carries"
        yield "pcie-two-lanes", seen
    else:
        yield "rdma-below-rate", seen
    for reason in _of_memory(record.nodes):
        yield "gpu-throttled", reason


def _of_logs(nodes: Sequence[FabricNode]) -> Iterator[Cause]:
    """Yield the issues that the lines of NCCL show.

    `NET/Socket` is listed where RDMA is taken, too: what the catalogue says clears it counts.
    """
    for node in nodes:
        marks = {mark for line in node.nccl_log for mark in marks_in(line)}
        came_to_nothing = {id for kind, id in marks if kind == "cleared_by"}
        came_to_nothing -= {id for kind, id in marks if kind == "confirmed_by"}
        for line in node.nccl_log:
            for issue in recognise(line):
                if issue.id not in came_to_nothing:
                    yield issue.id, f"{node.name}: {issue.title}: {line}"


# -- the run ---------------------------------------------------------------------------------------

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

END, ONCE = (
    files(__package__).joinpath("data", f"fabric-{name}.sh").read_text(encoding="utf-8")
    for name in ("end", "once")
)
"""Programs of a node's shell, as they say themselves."""

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
    # Without a description systemd takes the command, whose lines it reads as settings.
    options = ["--description=the end of bench fabric", "--quiet", "--collect"]
    options += ["--no-ask-password", f"--on-active={seconds:.0f}"]
    options += ["--timer-property=AccuracySec=10s", "--property=RuntimeMaxSec=120", "--"]
    words = ["sh", "-c", ARM, UNIT, *options, *end_command(run)]
    hint = "`bench fabric` starts Ray only where the node ends it by itself"
    _on_each(sessions, words, "systemd-run", hint)


def _on_each(sessions: Iterable[Session], words: list[str], what: str, hint: str = "") -> None:
    """Run a command on each node; raises Failed where it fails."""
    for session in sessions:
        done = session.run(words)
        if done.status != 0:
            why = done.stderr.strip()[:200] or f"status {done.status}"
            raise Failed(f"{what}: {why}", where=session.node, hint=hint)


def start_no_more(sessions: Iterable[Session]) -> None:
    """Have no node start Ray again after a reboot or a power cut, of which no timer is left.

    Only when its nodes have joined: until then Ray's programs may have to be started again.

    Raises:
        SparkClusterError: a node does not do so.
    """
    words = ["sh", "-c", ONCE, "once", RAY, f"{paths.SYSTEMD_UNITS}/{RAY}.service"]
    _on_each(sessions, words, "Ray would start again with the node")


def disarm(sessions: Iterable[Session]) -> None:
    """Take the timers back; one that stays finds nothing to end."""
    for session in sessions:
        with contextlib.suppress(SparkClusterError):
            session.run(["systemctl", "stop", f"{UNIT}.timer"])
