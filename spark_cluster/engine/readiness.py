"""The ladder from "containers are up" to "the answer is right", each step with its own message.

The time limit of a start grows while the engine is seen to compile, tune or load: the first start
after a change of NCCL's devices compiled kernels for 36 minutes, without a line of log for most of
them (source: deepseek-dspark-40). So nothing is concluded from the clock alone.

On a Spark the page cache, the GPU and everything else share one memory, which is prepared before
weights are loaded and guarded while they are. A GPU with memory of its own needs none of this.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from spark_cluster.config.fact_gathering import HIGH_PRESSURE, free_blocks
from spark_cluster.config.recipe_schema import Probe
from spark_cluster.config.topology import Node
from spark_cluster.engine import runtime, vram
from spark_cluster.engine.deployment import Deployment, Endpoint, Server, probe_once
from spark_cluster.engine.engine import engine
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.engine.proxy import DESCRIPTION, ModelServer, Replica, models_of, replicas_of
from spark_cluster.engine.ray import NODES, SILENT, SILENT_HINT, TOKENS_SINCE, RayNode, RayState
from spark_cluster.errors import Failed, Refused, SparkClusterError, VerificationFailed
from spark_cluster.node import containers, load_watch, replies
from spark_cluster.node.containers import ContainerState
from spark_cluster.node.engine_caches import of_environment, short
from spark_cluster.node.health import Life, judge
from spark_cluster.node.local_server import stop_command
from spark_cluster.node.output import counted
from spark_cluster.runner.events import Progress
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Session, ask_all, printed

FRAGMENTED = (
    "{}, after caches were dropped and memory was compacted: weights may load slowly, or the "
    "driver refuses memory (NV_ERR_NO_MEMORY). Where the load fails or stalls, reboot the node"
)
PRESSURE = (
    "programs of the node have waited for memory for {:g} % of the last 10 s before the load: see "
    "what holds it (`spark-cluster vram`, `free -h` there)"
)


def prepare_memory(play: Play, nodes: Sequence[Node]) -> None:
    """Give the page cache of each node back and compact its memory, before an engine is started.

    The user is told where memory stays fragmented, or the node was short of it already.
    """
    for node, found in _ask_guard(play, nodes, "prepare"):
        if found["problem"]:
            play.note(
                f"the page cache was not dropped: {found['problem']}", warning=True, node=node
            )
        if found["pressure"] is not None and found["pressure"] >= HIGH_PRESSURE:
            play.note(PRESSURE.format(found["pressure"]), warning=True, node=node)
        blocks = free_blocks(found["buddyinfo"], found["page_size"])
        if blocks is not None and blocks.fragmented:
            play.note(FRAGMENTED.format(blocks), warning=True, node=node)


class LoadGuard:
    """The guard of the nodes of one server, from when it is seen to load until it is ready.

    Args:
        limit_s: seconds after which the guard ends by itself.
    """

    def __init__(self, play: Play, server: Server, limit_s: float) -> None:
        self._play, self._nodes, self._server = play, server.nodes, server.program
        self._health = server.endpoint.of_engine.path(engine(server.recipe.engine).health)
        self._limit_s, self._begun = limit_s, False

    def begin(self) -> None:
        """Start it on each node, once; it goes on when the laptop is gone."""
        if self._begun:
            return
        self._begun = True
        given = {"server": self._server, "programs": [self._server, RAY], "limit_s": self._limit_s}
        head, *others = self._nodes
        try:
            _ask_guard(self._play, [head], "begin", health=self._health, **given)
            _ask_guard(self._play, others, "begin", **given)
        except Failed as error:
            what = "memory is not guarded while weights load"
            self._play.note(f"{error.where}: {what}: {error.message}", warning=True)

    def ended(self) -> tuple[str, load_watch.Reason] | None:
        """Return the node on which it has ended the load, and why; None where it has not."""
        files = {"reason": load_watch.reason_file(self._server)}
        sessions = self._play.sessions_of(self._nodes if self._begun else ())
        answers = ask_all(sessions, "gather", files=files)
        found = {n: load_watch.parse(one["files"]["reason"]) for n, one in answers.items()}
        return next(((name, reason) for name, reason in found.items() if reason), None)

    def end(self) -> None:
        """End it; one on a node that is lost ends by itself."""
        if self._begun:
            self._begun = False
            with contextlib.suppress(SparkClusterError):
                _ask_guard(self._play, self._nodes, "end", server=self._server)


def _ask_guard(
    play: Play, nodes: Sequence[Node], what: str, **given: Any
) -> list[tuple[Node, Any]]:
    """Ask the nodes whose memory is the GPU's, all at once."""
    guarded = [node for node in nodes if not node.facts.gpu_memory.of_gpu]
    answers = ask_all(play.sessions_of(guarded), "load_guard", what=what, **given)
    return [(node, answers[node.name]) for node in guarded]


LONGEST = 3
"""Times its limit that a start is waited for at most: a container can pretend to be at work."""

QUIET = 1 / 6
"""Share of its limit in which something must move: 300 s of the usual 1800."""

LOOKS = 10
"""Looks within that time, so that a short pause between two compilers is no end."""

COMPILERS = re.compile(
    r"nvcc|cicc|ptxas|cudafe\+\+|fatbinary|nvlink|ninja|cc1plus|gcc|g\+\+|clang(\+\+)?"
)
"""Programs that CUDA, Triton, FlashInfer and torch.compile run to compile kernels. The engine's own
processes are left out: they wait with a busy CPU, also for a peer that never comes."""

MOST = 8
"""Compilers of a node that are compared; more say no more."""

WORKING = re.compile(
    r"checkpoint shards|[Ll]oad(ing)? weight|torch\.compile|[Cc]ompil(ed|ing) |Dynamo bytecode"
    r"|[Cc]aptur\w+ (CUDA|cuda) graph|[Aa]utotun|\[AutoTuner\]|[Ww]arm(ing)?[ -]?up|DeepGEMM|JIT "
)
"""Lines of vLLM, SGLang, FlashInfer and DeepGEMM about work. vLLM's own "No available shared memory
broadcast block found in 60 seconds", which names compilation as one of its reasons, is none: it
comes each minute of a hang, too."""

Seen = Mapping[str, str]
"""What may move, to how it is now: one that differs from the progress before has moved."""


class TimeLimit:
    """The time limit of one start; the user is told once that it has passed, and what is awaited.

    Args:
        server: whose `ready_timeout_s` is the time until it is looked whether anything moves.
    """

    def __init__(self, play: Play, server: Server) -> None:
        self.limit_s = server.recipe.ready_timeout_s
        self._play, self._server = play, server
        self._began = time.monotonic()
        self._next = self._moved = self._began + self.limit_s
        self._before: Seen | None = None
        self._announced = False

    def passed(self) -> str:
        """Return why it is not waited for any longer; empty while it is."""
        if time.monotonic() <= self._next:
            return ""
        now, before = progress(self._play, self._server), self._before
        at = time.monotonic()
        self._before, self._next = now, at + self.limit_s * QUIET / LOOKS
        if before is None:
            self._moved = at
            return ""
        moved = [f"{what} ({how})" for what, how in now.items() if how and how != before.get(what)]
        waited = at - self._began
        if moved:
            self._moved = at
            self._say(moved)
        elif at - self._moved > self.limit_s * QUIET:
            quiet = f"nothing has moved for {at - self._moved:.0f} s"
            return f"after {waited:.0f} s, and {quiet}: no compiler, no cache, no line about work"
        if waited > self.limit_s * LONGEST:
            return f"after {waited:.0f} s, {LONGEST} times its limit, though something still moves"
        return ""

    def _say(self, moved: list[str]) -> None:
        if not self._announced:
            self._announced = True
            self._play.note(
                f"not healthy after {self.limit_s:g} s (ready_timeout_s), but at work: "
                f"{'; '.join(moved)}; it is waited for while that goes on, "
                f"{self.limit_s * LONGEST:g} s at most",
                node=self._play.head,
            )


def progress(play: Play, server: Server) -> Seen:
    """Look at the log, at compilers and at the caches of each node that serves."""
    found: dict[str, str] = {}
    programs = (server.program, RAY)
    for node in play.nodes:
        if node.name not in server.node_names:
            continue
        session = play.session(node)
        asked = {
            **{name: runtime.question(name) for name in programs},
            **{f"cpu {name}": runtime.cpu_seconds(name) for name in programs},
        }
        answer = session.request("gather", commands=asked)
        tables = printed(answer)
        found[f"compilers on {node.name}"] = _compilers([tables[f"cpu {n}"] for n in programs])
        states = [containers.answered(answer["commands"][name]) for name in programs]
        image = next((state.image for state in states if state.image), "")
        folder = short(image) if image else of_environment(server.venv)
        root = server.cache_root
        cache = session.request("caches", what="written", folder=root, name=folder)
        if cache["files"]:
            size = f"{cache['files']} files, {cache['bytes']} bytes"
            found[f"compiled code on {node.name}"] = size
        found[f"log on {node.name}"] = _working(runtime.read_log(session, server.program, lines=20))
    return found


def _compilers(tables: list[str]) -> str:
    """Return the compilers in tables of process id, CPU seconds and name."""
    rows = [line.split() for table in tables for line in table.splitlines()]
    known = [f"{row[2]} {row[0]}: {row[1]} s" for row in rows if len(row) == 3 and _compiles(row)]
    return ", ".join(known[:MOST])


def _compiles(row: list[str]) -> bool:
    return bool(COMPILERS.fullmatch(row[2])) and row[0].isdecimal() and row[1].isdecimal()


def _working(log: str) -> str:
    """Return the last line of a log that is about work."""
    found = (line for line in reversed(log.splitlines()) if WORKING.search(line))
    return runtime.last_line(next(found, ""))[:200]


POLL_S = 1.0

ANSWER_S = 120.0
"""Seconds that the answer to the recipe's question may take."""

ENDS_AGAIN = 2
"""Starts of a Ray node by its runtime after which it does not come up by itself: one is usual for a
worker that finds its head not ready yet."""


def ray_cluster(play: Play, tp: int, port: int, timeout: float) -> list[RayNode]:
    """Wait until Ray shows `tp` nodes with a GPU each, at most `timeout` seconds.

    Raises:
        Failed: a node of Ray ends again and again; with the first error of its log.
        VerificationFailed: it does not in time; with who is missing, or that nobody answers.
    """
    deadline = time.monotonic() + timeout
    state = RayState(play.session(play.head), port)
    wanted = sorted(play.nodes, key=lambda node: not node.is_head)[:tp]
    restarts: dict[str, int] = {}
    while True:
        nodes = state.nodes()
        gpus = sum(node.gpus for node in nodes)
        if len(nodes) >= tp and gpus >= tp:
            return nodes
        if time.monotonic() > deadline:
            break
        for name in (node.name for node in wanted):
            had = container_state(play, RAY, name)
            if had.restarts >= restarts.setdefault(name, had.restarts) + ENDS_AGAIN:
                raise _ray_ended(play, had, name)
        play.bus.emit(Progress(play.head.name, "Ray", f"{len(nodes)} of {tp} nodes, {gpus:g} GPUs"))
        time.sleep(POLL_S / 2)
    raise _not_joined(play, state, nodes, wanted, timeout)


def _not_joined(
    play: Play, state: RayState, nodes: list[RayNode], wanted: list[Node], timeout: float
) -> VerificationFailed:
    """Return the error of a Ray that does not show the wanted nodes in time."""
    fault = first_fault(play, RAY)
    cause = f"; {fault.where} says: {fault.text}" if fault else ""
    answer = state.ask(NODES)
    if not answer.status:
        return VerificationFailed(
            f"{SILENT} on port {state.port} after {timeout:g} s ({answer.reason}){cause}",
            where=play.head.name,
            hint=SILENT_HINT,
        )
    here = {node.address for node in nodes}
    missing = [node.name for node in wanted if node.fabric_ip not in here]
    return VerificationFailed(
        f"Ray shows {len(nodes)} of {len(wanted)} nodes after {timeout:g} s; "
        f"missing: {', '.join(missing) or 'a GPU'}{cause}",
        hint="ping the head's fabric address from the worker; the same image on both nodes? "
        "spark-cluster logs shows more",
    )


def _ray_ended(play: Play, state: ContainerState, name: str) -> Failed:
    fault = runtime.first_error(
        {f"{name} {RAY}": runtime.read_log(play.connections.session(name), RAY)}
    )
    # Docker would start it again and again; what it said stays to be read.
    play.connections.session(name).run(stop_command(RAY, state.runtime))
    return Failed(
        f"Ray on {name} ended {counted(state.restarts, 'time')}: "
        f"{fault.text if fault else 'its log has no error'}",
        where=f"{name} {RAY}",
        hint=runtime.advice(fault, "it was stopped, its log stays: spark-cluster logs shows more"),
    )


def ray_asks_for_its_token(play: Play, port: int) -> None:
    """Say so when Ray does what anyone asks: seen, not concluded from a version."""
    if RayState(play.session(play.head), port).open_to_anyone():
        play.note(
            f"Ray of this image takes requests without its token (Ray {TOKENS_SINCE} and later ask "
            "for one): only the firewall keeps others from it",
            warning=True,
            node=play.head,
        )


class Again:
    """What starts a server that was left as it ran, once; nothing for one that was started."""

    def __init__(self, begin: Callable[[], object] | None = None) -> None:
        self._begin = begin

    def __bool__(self) -> bool:
        return self._begin is not None

    def start(self) -> None:
        """Start it; there is no second time."""
        begin, self._begin = self._begin, None
        if begin is not None:
            begin()


class ServerEnded(Failed):
    """The server, or a rank of it, ended before it was healthy."""


class NoCompletion(VerificationFailed):
    """The server says that it is healthy, and its engine fails: it may have died a moment ago."""


def healthy(play: Play, server: Server, again: Again | None = None) -> list[vram.NodeVram]:
    """Wait until a server is healthy: `ready_timeout_s`, and longer while it is seen to work.

    The memory of its nodes is guarded while it loads; where this is cut off, the guard stays.

    Args:
        play: over its nodes.
        again: starts a server that this run found running and left as it was. Its engine may have
            died a moment ago, and its API ends only now: it is started again, once.

    Returns:
        The largest VRAM seen meanwhile.

    Raises:
        ServerEnded: the server or a rank ended; with the earliest real error over all ranks.
        Failed: a node was short of memory, so that its guard ended the load.
        VerificationFailed: it is not healthy in time.
    """
    try:
        return _until_healthy(play, server)
    except ServerEnded as error:
        if not again:
            raise
        play.note(f"the server that was running has ended: {error.message}; starting it again")
    prepare_memory(play, server.nodes)
    again.start()
    return _until_healthy(play, server)


def _until_healthy(play: Play, server: Server) -> list[vram.NodeVram]:
    session, serving = play.session(play.head), engine(server.recipe.engine)
    limit = TimeLimit(play, server)
    guard = LoadGuard(play, server, LONGEST * limit.limit_s)
    peak: list[vram.NodeVram] = []
    course = vram.Course(play.bus, "loading")
    first: dict[str, ContainerState] = {}
    while True:
        (life, _), now = play.together(
            lambda: runtime.ask_health(serving, server.endpoint, session),
            lambda: vram.sample(play.sessions),
        )
        course.take(now)
        peak = vram.peak(peak, now)
        if life.serves:
            guard.end()
            return peak
        guard.begin()
        if failed := _ended(play, server, guard, first):
            guard.end()
            raise failed
        log = runtime.read_log(session, server.program, lines=20)
        if passed := limit.passed():
            raise VerificationFailed(
                f"the server is not healthy {passed}; its log ends with: {runtime.last_line(log)}",
                where=play.head.name,
                hint="it is left running: spark-cluster logs --follow shows it, and `up` waits "
                "for it again; a longer ready_timeout_s of the recipe gives it more time",
            )
        play.bus.emit(Progress(play.head.name, serving.dialect.title, runtime.last_line(log)))
        time.sleep(POLL_S)


def ask(play: Play, endpoint: Endpoint, probe: Probe, server: str = SERVER) -> str:
    """The answer to the recipe's question; health is not readiness, a right answer is.

    Raises:
        NoCompletion: the engine fails.
        VerificationFailed: no answer, or a wrong one.
    """
    reply = probe_once(play.session(play.head), endpoint, "chat", probe, timeout=ANSWER_S)
    state = judge(None, 200, reply)
    if reply.status != 200:
        fault = first_fault(play, server)
        cause = fault.text if fault else reply.why
        refused = state.life is Life.REFUSING
        raise (VerificationFailed if refused else NoCompletion)(
            f"/health is fine, but a completion is not (status {reply.status}): {cause}",
            where=fault.where if fault else play.head.name,
            hint=runtime.advice(fault, "spark-cluster logs shows more"),
        )
    if not state.serves:
        raise VerificationFailed(
            f"/health is fine, but {reply.why}",
            where=play.head.name,
            hint="another program than vLLM uses the port, or a proxy answers for it",
        )
    text = reply.text
    if probe.expect.lower() not in text.lower():
        raise VerificationFailed(
            f"asked {probe.question!r}, the model says {replies.short(text)!r}; "
            f"expected {probe.expect!r}",
            where=play.head.name,
            hint="wrong kernels or a damaged copy of the model give fluent nonsense; "
            "the recipe's `probe` says what is asked",
        )
    return text


def container_state(play: Play, name: str, node: str | None = None) -> ContainerState:
    """State of a program on a node, by default the head, whatever runs it."""
    return runtime.state_of(play.connections.session(node or play.head.name), name)


def look_at_endpoint(session: Session) -> tuple[ContainerState, str | None]:
    """Ask a head for its one server, and for what the proxy's own file says of the endpoint."""
    answer = session.request(
        "gather",
        commands={SERVER: runtime.question(SERVER)},
        files={"endpoint": DESCRIPTION},
    )
    return containers.answered(answer["commands"][SERVER]), answer["files"]["endpoint"]


def _ended(
    play: Play, server: Server, guard: LoadGuard, first: dict[str, ContainerState]
) -> Failed | None:
    """Return why the load has ended, and stop what is left of it, or its runtime would start it
    again and again; its log stays to be read.

    Args:
        first: the state of each rank's program at the first look, which is kept here.
    """
    names = (play.head.name, *server.ranks)
    states = {name: container_state(play, server.program, name) for name in names}
    if short := guard.ended():  # asked last: it may be the reason for a state
        node, reason = short
        for name, state in states.items():
            play.connections.session(name).run(stop_command(server.program, state.runtime))
        return Failed(
            f"the load was ended before the node ran out of memory: {reason}",
            where=f"{node} {server.program}",
            hint="`spark-cluster vram` shows what else holds memory, `spark-cluster plan` what it "
            "needs: a smaller share or context, or more nodes",
        )
    for name, state in states.items():
        if judge(state.watched(first.setdefault(name, state))).gone:
            return _rank_ended(play, server, state, name)
    return None


def _rank_ended(play: Play, server: Server, state: ContainerState, name: str) -> ServerEnded:
    fault = first_fault(play, server.program)
    session = play.connections.session(name)
    last = runtime.last_line(runtime.read_log(session, server.program, lines=20))
    who = "the server" if name == play.head.name else f"the rank on {name}"
    what = "restarted" if state.status == "running" else f"is {state.status}"
    session.run(stop_command(server.program, state.runtime))
    return ServerEnded(
        f"{who} {what} while loading: {fault.text if fault else last or state.error}",
        where=fault.where if fault else f"{name} {server.program}",
        hint=runtime.advice(
            fault, f"{who} was stopped, its log stays: spark-cluster logs shows more"
        ),
    )


def first_fault(play: Play, program: str) -> runtime.Fault | None:
    """Return the earliest error in the logs of one of our programs and of Ray, on all nodes."""
    return runtime.first_error(
        {
            f"{node.name} {name}": runtime.read_log(play.session(node), name)
            for node in play.nodes
            for name in dict.fromkeys((program, RAY))
        }
    )


# The servers of a deployment as they were found, before anything is changed.


@dataclass(frozen=True)
class Member:
    """A server while it is brought up.

    Attributes:
        play: of one of several servers over its nodes alone.
        running: its server as it was found.
        ray: of one of several servers, Ray on its node as it was found.
    """

    play: Play
    server: Server
    running: ContainerState
    ray: ContainerState | None = None

    @property
    def node(self) -> Node:
        """Its node, or the head of several."""
        return self.play.head


def members(play: Play, deployment: Deployment) -> list[Member]:
    """Look at each server, and of several at Ray on its node: what runs there of ours."""
    if deployment.is_one:
        return [Member(play, deployment.first, container_state(play, deployment.first.program))]

    def look(server: Server) -> Member:
        own = play.part(server.node_names)
        states = [container_state(own, name) for name in (server.program, RAY)]
        return Member(own, server, *states)

    return play.together(*[partial(look, server) for server in deployment.servers])


def with_servers(found: Sequence[Member], deployment: Deployment) -> list[Member]:
    """Return the members with the servers of the same deployment, of which more is known now."""
    pairs = zip(found, deployment.servers, strict=True)
    return [replace(one, server=server) for one, server in pairs]


def chains(found: Sequence[Member]) -> list[list[Member]]:
    """Return the members by node: those of one are started one after the other, because an engine
    measures the free memory while it starts."""
    names = dict.fromkeys(one.node.name for one in found)
    return [[one for one in found if one.node.name == name] for name in names]


def behind(play: Play) -> tuple[Replica, ...]:
    """Return the servers that the proxy's own file names: replicas, or those of several models."""
    text = play.session(play.head).read_file(DESCRIPTION)
    return models_of(text) or replicas_of(text)


def must_serve_one(play: Play, what: str) -> None:
    """Refuse a command that is for one server where the endpoint has several models.

    Args:
        what: the command and its verb.

    Raises:
        Refused: it has; with their names.
    """
    now = [one for one in behind(play) if isinstance(one, ModelServer)]
    if now:
        raise Refused(
            f"the endpoint has {len(now)} models ({', '.join(one.model for one in now)}), and "
            f"{what} one server only",
            where=play.head.name,
            hint="`spark-cluster up` repairs and changes what the inventory lists; "
            "`spark-cluster up --recipe NAME` serves one recipe in place of them",
        )
