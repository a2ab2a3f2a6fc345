"""Runtimes of an engine's programs: containers, or a virtual environment and systemd units.

Both give a program the same command, environment, secret files, mounts, labels and limits, start
it again when it ends and after a reboot, and are asked for their state and log in the same way.
The logs are read here, down to the earliest real error in them.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal, get_args

from spark_cluster.config.recipe_schema import Readiness
from spark_cluster.config.topology import Node
from spark_cluster.engine.deployment import Endpoint, Server
from spark_cluster.engine.engine import (
    SECRET_ENV,
    WITH_SECRET_ENV,
    Engine,
    EngineProcess,
    judge_health,
)
from spark_cluster.engine.names import PAUSE, PROGRAMS, RAY, SERVER
from spark_cluster.engine.proxy import DESCRIPTION, models_of, refused_by_proxy
from spark_cluster.errors import Failed, VerificationFailed
from spark_cluster.issues import log_lines
from spark_cluster.issues.entries import KnownIssueMatch
from spark_cluster.node import confinement, containers, paths
from spark_cluster.node.containers import RECIPE, ContainerState
from spark_cluster.node.engine_caches import of_environment
from spark_cluster.node.health import HEALTH_S, State
from spark_cluster.node.store.manifest import whole_folder
from spark_cluster.node.values import Secret
from spark_cluster.resources import Container, Resource, Unit
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Answer, Session, ask_all, ask_each, printed

Name = Literal["docker", "venv"]

STACK = 64 * 1024 * 1024
"""Bytes of stack that a program may take."""

INFINIBAND = "/dev/infiniband"

DEVICES = ("char-nvidia*", "char-infiniband*", f"{INFINIBAND}/rdma_cm")
"""What units may open: the GPU's devices and, by /proc/devices, those of RDMA (rdma_cm is a device
of the kernel's group `misc`)."""

JOURNAL = 'journalctl --quiet --no-pager --unit "$2.service" --since "@$(stat -c %Y "$1")"'
"""The journal of a unit since it was last made: what it said before, another program said."""

LOG = f"""\
test -e "$1" || exec docker logs --timestamps --tail "$3" "$2" 2>&1
exec {JOURNAL} --lines "$3" --output short-iso-precise --utc
"""

BEGINNING = f"""\
if test -e "$1"; then {JOURNAL} --output cat; else docker logs "$2" 2>&1; fi | head -c "$3"
"""


SEARCH_S = 20.0
"""Seconds for all patterns of a recipe."""

_SEARCH = (
    "import json, re, sys; patterns, log = json.load(sys.stdin); "
    "print([found.start() if (found := re.search(p, log)) else -1 for p in patterns])"
)


def resource(process: EngineProcess, server: Server) -> Container | Unit:
    """Return the desired state: the program runs exactly so, in the server's runtime."""
    return (_unit if server.recipe.runtime == "venv" else _container)(process, server)


def _container(process: EngineProcess, server: Server) -> Container:
    """Return a container of the deployment's image, with what RDMA needs.

    The image's own entry point is left out: that of vllm/vllm-openai is `vllm serve`, others have
    none, and the command is to be the same. A default memlock of 8 MB breaks RDMA.
    """
    command, secrets = _with_secrets(process, server)
    return Container(
        process.name,
        server.image,
        command,
        entrypoint="",
        env=dict(process.env),
        secret_files=secrets,
        mounts=_mounts(process, server),
        caches=server.cache_root,
        network="host",
        ipc="host",
        pid=f"container:{PAUSE}" if process.sees_ray else None,
        gpus="all",
        devices=(INFINIBAND,) if process.rdma else (),
        cap_add=confinement.ENGINE,
        cap_drop=confinement.DROPPED,
        security_opt=confinement.SECURITY,
        user=confinement.USER,
        ulimits={"memlock": -1, "stack": STACK},
        # After status 0 too, with which vLLM ends when a rank died. The role start_limit stops a
        # server that ends again and again; not Ray, which holds no GPU memory and waits for its
        # peers. The model loader starts its servers itself, when there is memory: not Docker, all
        # of them when the node boots.
        restart="no" if server.on_request else "unless-stopped",
        labels=dict(server.labels),
        stays_s=0,  # who starts it watches it until it is ready
        stop_timeout_s=process.stop_timeout_s,
        state="created" if server.on_request else "running",
    )


def _unit(process: EngineProcess, server: Server) -> Unit:
    """Return a systemd unit that runs a program of the virtual environment."""
    command, secrets = _with_secrets(process, server)
    return Unit(
        process.name,
        command,
        search_path=(f"{server.venv}/bin",),
        env={"VIRTUAL_ENV": server.venv, **process.env},
        secret_files=secrets,
        mounts=_mounts(process, server),
        caches=(server.cache_root, of_environment(server.venv)),
        devices=DEVICES,
        limits={"MEMLOCK": "infinity", "STACK": str(STACK), "NOFILE": "1048576"},
        restart="always",  # as above
        labels=dict(server.labels),
        description=f"{process.name} of spark-cluster",
        stop_timeout_s=process.stop_timeout_s,
    )


def without(name: str, runtime: Name, stop_timeout_s: int = 10) -> Container | Unit:
    """Return the desired state: there is no program of this name in a runtime."""
    kind = Unit if runtime == "venv" else Container
    return kind(name, state="absent", stop_timeout_s=stop_timeout_s)


def follow(name: str, lines: int, runtime: Name) -> list[str]:
    """Return the command that prints the end of a log, and what is added to it."""
    if runtime == "docker":
        return ["docker", "logs", "--follow", "--tail", str(lines), name]
    end = ["--lines", str(lines), "--output", "cat", "--quiet"]
    return ["journalctl", "--follow", *end, "--unit", f"{name}.service"]


NO_PAUSE = Container(PAUSE, state="absent", stop_timeout_s=0)
"""The desired state without Ray: nothing holds process ids for it."""


def absent(*names: str) -> list[Resource]:
    """Return the desired state: no program of these names, in whatever runtime.

    A server has time to end; nothing of Ray's is worth waiting for. Without Ray there is no
    container for its process ids either.
    """
    gone: list[Resource] = [
        without(name, one, 2 if name == RAY else 30)
        for name in sorted(names, key=lambda name: name == RAY)  # what stands on it ends first
        for one in get_args(Name)
    ]
    return [*gone, NO_PAUSE] if RAY in names else gone


def our_processes(
    play: Play, names: Collection[str], programs: Iterable[str] = PROGRAMS
) -> dict[str, set[int]]:
    """Return the process ids (of the host) in our programs, by node.

    Args:
        names: of the nodes.
    """
    sessions = {node.name: play.session(node) for node in play.nodes if node.name in names}
    found = process_ids(sessions, {name: {p: p for p in programs} for name in sessions})
    return {name: set[int]().union(*pids.values()) for name, pids in found.items()}


def pause(server: Server) -> list[Resource]:
    """Return what the head's containers of Ray and of servers next to it need first.

    Units need none, and without Ray there is none.
    """
    if server.recipe.runtime != "docker":
        return []
    if not server.on_ray:
        return [NO_PAUSE]
    return [
        Container(
            PAUSE,
            server.image,
            ("sleep", "infinity"),
            entrypoint="",
            network="none",
            cap_drop=confinement.DROPPED,
            security_opt=confinement.SECURITY,
            stays_s=0,
            stop_timeout_s=0,
        )
    ]


def question(name: str) -> list[list[str]]:
    """Return the commands that tell a program's state; `containers.parse` reads what they print.

    The first one counts that has an answer, as the agent's `gather` takes them.
    """
    return [containers.question(name), ["docker", "container", "inspect", name]]


def state_of(session: Session, name: str) -> ContainerState:
    """Ask a node for the state of a program, whatever runs it."""
    asked = {"inspect": question(name)}
    return containers.answered(session.request("gather", commands=asked)["commands"]["inspect"])


def servers_question() -> list[str]:
    """Return the command that prints the names of the servers of several models, a line each.

    They are containers; those of other programs whose names begin so lack the label.
    """
    made = ["--filter", f"label={RECIPE}", "--filter", f"name=^{SERVER}-"]
    return ["docker", "container", "ls", "--all", *made, "--format", "{{.Names}}"]


def server_names(printed: str) -> tuple[str, ...]:
    """Return the names that the command of `servers_question` printed."""
    return tuple(sorted(name for name in printed.split() if name.startswith(f"{SERVER}-")))


def log(name: str, lines: int) -> list[str]:
    """Return the command that prints the end of a program's log, with time stamps."""
    return ["sh", "-c", LOG, "log", f"{paths.SYSTEMD_UNITS}/{name}.service", name, str(lines)]


def beginning(name: str, size: int) -> list[str]:
    """Return the command that prints the first bytes of a program's log, without time stamps."""
    return ["sh", "-c", BEGINNING, "log", f"{paths.SYSTEMD_UNITS}/{name}.service", name, str(size)]


def processes(name: str) -> list[list[str]]:
    """Return the commands that print the ids of a program's processes, with a title or without."""
    return [["docker", "top", name, "-eo", "pid"], ["cat", _processes_of(name)]]


def _processes_of(name: str) -> str:
    """Return the file with the ids of a unit's processes."""
    return f"/sys/fs/cgroup/system.slice/{name}.service/cgroup.procs"


def cpu_seconds(name: str) -> list[list[str]]:
    """Return the commands that print id, CPU seconds and name of a program's processes."""
    columns = "pid,cputimes,comm"
    shell = f'exec ps -o {columns} -p "$(paste -sd, "$1")"'
    return [["docker", "top", name, "-eo", columns], ["sh", "-c", shell, "ps", _processes_of(name)]]


def changed(names: Sequence[str], name: str) -> bool:
    """Return True when a program of this name is among the ids of changed resources."""
    return any(f"{kind}:{name}" in names for kind in ("Container", "Unit"))


def _with_secrets(
    process: EngineProcess, server: Server
) -> tuple[tuple[str, ...], dict[str, Secret]]:
    """Return the command and the secret files; secret variables are read from files."""
    files = {
        f"{SECRET_ENV}/{variable}": Secret(value) for variable, value in server.secret_env.items()
    }
    command = ("sh", "-c", WITH_SECRET_ENV, *process.command) if files else process.command
    return command, {**files, **process.secret_files}


def _mounts(process: EngineProcess, server: Server) -> tuple[str, ...]:
    path = whole_folder(server.model_path) if server.model_path else ""
    model = (f"{path}:{path}:ro",) if path else ()
    return (*model, *server.mounts, *process.mounts)


def present_servers(play: Play) -> dict[str, tuple[str, ...]]:
    """Return by node the servers of several models that are there, running or not."""
    answers = ask_all(play.sessions, "gather", commands={"servers": servers_question()})
    # Nothing is printed without Docker.
    return {n: server_names(printed(answer)["servers"]) for n, answer in answers.items()}


def present_programs(play: Play) -> dict[str, tuple[str, ...]]:
    """Return by node the names that a program of ours may have there: those of one server and of
    Ray, which need not be there, and of the servers of several models, which are.
    """
    return {node: (SERVER, *names, RAY) for node, names in present_servers(play).items()}


def models_by_process(sessions: Mapping[str, Session]) -> dict[str, dict[int, str]]:
    """Return by node the ids of processes of several models' servers, and whose they are; empty
    where the endpoint has one model. The one file that tells is on the head.
    """
    answers = ask_all(sessions, "gather", files={"endpoint": DESCRIPTION}).values()
    models = [model for one in answers for model in models_of(one["files"]["endpoint"])]
    programs = {n: {one.model: one.program for one in models if one.node == n} for n in sessions}
    return {
        node: {pid: model for model, pids in found.items() for pid in pids}
        for node, found in process_ids(sessions, programs).items()
    }


def process_ids(
    sessions: Mapping[str, Session], programs: Mapping[str, Mapping[str, str]]
) -> dict[str, dict[str, set[int]]]:
    """Return the ids (of the host) of the processes in programs; one question a node, all at once.

    Args:
        programs: by node and by a name of the caller's; the answer has the same keys, without nodes
            that have none.
    """
    asked = {
        node: {"commands": {name: processes(program) for name, program in wanted.items()}}
        for node, wanted in programs.items()
        if wanted
    }
    return {
        node: {
            name: {int(word) for word in text.split() if word.isdecimal()}
            for name, text in printed(answer).items()
        }
        for node, answer in ask_each(sessions, "gather", asked).items()
    }


def ask_health(
    serving: Engine,
    endpoint: Endpoint,
    session: Session,
    container: ContainerState | None = None,
    timeout: float = HEALTH_S,
) -> tuple[State, Answer]:
    """Ask a server for its health; return whether it lives, by that and its container if known.

    Status 0 of the answer, too, where the proxy answers for it.
    """
    answer = endpoint.request(session, serving.health, timeout=timeout)
    if refused_by_proxy(answer.status, answer.body):
        answer = replace(answer, status=0)
    return judge_health(serving, answer.status, container), answer


# Logs: the earliest real error in them, and what is known of it. The beginning of a log tells
# whether a start is what the recipe expects.


@dataclass(frozen=True)
class Fault:
    """An error line of one container.

    Attributes:
        at: Docker's time stamp.
        before: its traceback.
        log: that it stands in, by which its engine is known.
    """

    where: str
    text: str
    at: str = ""
    before: str = field(default="", repr=False, compare=False)
    log: str = field(default="", repr=False, compare=False)

    @property
    def known(self) -> KnownIssueMatch | None:
        """The known issue that explains it; None when none does."""
        from spark_cluster.issues.explain import known_in

        return known_in(self.log, self.text, self.before)


def advice(fault: Fault | None, otherwise: str) -> str:
    """Return what to do about a fault, as an error's hint: the known issue and its fix.

    Args:
        otherwise: the hint when nothing is known of it; it stands behind the fix too.
    """
    known = fault.known if fault is not None else None
    if known is None:
        return otherwise
    return f"{known.title} ({known.id}): {known.cause}\n  {known.fix}\n  {otherwise}"


@contextmanager
def explained() -> Iterator[None]:
    """Add to a failure what is known of it: a program that ends at once has its log in the message.

    Raises:
        Failed: as it was raised, with a longer hint.
    """
    try:
        yield
    except Failed as error:
        lines_of_it = (Fault(error.where, line.strip()) for line in error.message.splitlines())
        fault = next((one for one in lines_of_it if one.known is not None), None)
        error.hint = advice(fault, error.hint)
        error.told = error.told and fault is None  # the run has shown the shorter hint
        raise


def read_log(session: Session, container: str, *, lines: int = 400) -> str:
    """The end of a container's log with Docker's time stamps; empty when there is none."""
    try:
        done = session.run(log(container, lines))
    except Failed:  # an idle node need not even have Docker
        return ""
    return containers.stamped(done.stdout + done.stderr) if done.status == 0 else ""


def last_line(log: str) -> str:
    """The last line that says something, without colours, stamps and the names of who speaks."""
    texts = (log_lines.read(raw).text for raw in reversed(log.splitlines()))
    return next(filter(None, texts), "")


def first_error(logs: Mapping[str, str]) -> Fault | None:
    """The earliest error over all logs that does not merely follow from another.

    Args:
        logs: where (`spark1 spark-vllm`) to its text, with time stamps or without.
    """
    found = [(where, error) for where, log in logs.items() for error in log_lines.errors_of(log)]
    causes = [
        (where, error) for where, error in found if not log_lines.is_echo(error.text)
    ] or found
    if not causes:
        return None
    where, error = min(causes, key=lambda one: one[1].line.at)
    return Fault(where, error.text, error.line.stamp, error.before, logs[where])


BEGINNING_BYTES = 4_000_000
"""Bytes of each log that are looked at; a start tells less than a tenth, requests much more."""

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


def must_fit(play: Play, nodes: Sequence[Node], wanted: Readiness, server: str = SERVER) -> None:
    """Look for the recipe's assertions in the logs of all ranks; a line of any of them counts.

    Args:
        server: name of the program that serves.

    Raises:
        VerificationFailed: a line is missing, or there is one that must not be.
    """
    if not (wanted.log_expect or wanted.log_forbid):
        return
    asked = [(play.session(node), name) for node in nodes for name in (server, RAY)]
    texts = play.together(*[partial(read_beginning, *one) for one in asked])
    missed = unmet("\n".join(texts), wanted.log_expect, wanted.log_forbid)
    if not missed:
        return
    first, *others = missed
    raise VerificationFailed(
        f"{first} (and {len(others)} more)" if others else first,
        where=play.head.name,
        hint="another kernel or transport is in use than the recipe was tested with, or this image "
        "words it otherwise: readiness.log_expect and log_forbid define what is expected",
    )


def read_beginning(session: Session, container: str, size: int = BEGINNING_BYTES) -> str:
    """The first `size` bytes of a container's log, without colours; empty when there is none."""
    try:
        done = session.run(beginning(container, size), timeout=60)
    except Failed:  # an idle node need not even have Docker
        return ""
    return _ANSI.sub("", done.stdout)


def unmet(log: str, expect: Sequence[str], forbid: Sequence[str]) -> list[str]:
    """Return in words the assertions that a log does not meet; of an expected line that is missing
    with what the log says about the same thing."""
    found, places = [], _searched([*expect, *forbid], log)
    for pattern, at in zip(expect, places, strict=False):  # those of `forbid` follow
        if at < 0:
            about = _about(pattern, log)
            said = f"; it says: {about}" if about else ""
            found.append(f"the engine's log does not contain {pattern!r}{said}")
    for at in places[len(expect) :]:
        if at >= 0:
            found.append(f"the engine's log contains a forbidden line: {_line_at(log, at)}")
    return found


def _searched(patterns: Sequence[str], log: str) -> list[int]:
    """Return where each pattern is found first; -1 where it is not.

    Raises:
        VerificationFailed: it takes too long, as with `(a+)+$`: hence a process, which can end.
    """
    argv, given = [sys.executable, "-I", "-c", _SEARCH], json.dumps([patterns, log])
    try:
        done = subprocess.run(
            argv, input=given, stdout=subprocess.PIPE, text=True, timeout=SEARCH_S, check=True
        )
    except subprocess.TimeoutExpired:
        raise VerificationFailed(
            f"the log was not searched within {SEARCH_S:g} s for the recipe's patterns",
            hint="write readiness.log_expect and log_forbid without repetitions of repetitions",
        ) from None
    return list(json.loads(done.stdout))


def _about(pattern: str, log: str) -> str:
    """The first line that has the longest plain text of a pattern."""
    plain = max(re.split(r"\\.|[^\w ]", pattern), key=len)
    at = log.find(plain) if len(plain.strip()) >= 6 else -1
    return _line_at(log, at) if at >= 0 else ""


def _line_at(log: str, at: int) -> str:
    end = log.find("\n", at)
    return log[log.rfind("\n", 0, at) + 1 : end if end >= 0 else len(log)].strip()
