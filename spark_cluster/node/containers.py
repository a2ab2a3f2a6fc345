"""Programs of the engine: containers as `docker container inspect` tells them, and units of the
runtime venv as systemd does, in the same words.

What comes is foreign input: nothing in it is taken for granted, and a field of another type than
Docker's counts as not there. Standard library only: programs on the nodes read it, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal, get_args

from spark_cluster.node import paths
from spark_cluster.node.replies import (
    at,
    decoded,
    mapping_of,
    object_in,
    objects_of,
    short,
    text_of,
    texts_of,
)

_STAMP = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?Z ?(.*)$")
_EARLY = timedelta(milliseconds=50)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")

RESTART_LIMIT = 5
"""Restarts within the window of `node/local_server.py` after which a server is stopped;
after a reboot one or two are usual, until its peers are there."""

NODES = "spark-cluster.nodes"
"""Label of how many nodes serve together, where that is not the tensor-parallel size."""
DATA_PARALLEL = "spark-cluster.data-parallel"
"""Label of how many data-parallel ranks the server has, where there are several."""
RECIPE = "spark-cluster.recipe"
"""Label of the recipe that a program was started with."""
ENGINE, EXECUTOR = "spark-cluster.engine", "spark-cluster.executor"
"""Labels of the engine, and of what joins its nodes: `ray` or `mp`."""
MODEL, KIND = "spark-cluster.model", "spark-cluster.kind"
"""Labels of the name to ask for, and of the kind of model; chat models have no kind."""
TP = "spark-cluster.tp"
"""Label of the tensor-parallel size."""
ENDPOINT = "spark-cluster.endpoint"
"""Label of the engine's own base URL."""
DASHBOARD = "spark-cluster.dashboard"
"""Label of the port of Ray's dashboard on the head."""

RAY_NODES = "/api/v0/nodes"
"""Path of Ray's State API there."""

Kind = Literal["chat", "embedding", "reranking", "transcription"]
KINDS: tuple[Kind, ...] = get_args(Kind)
"""Kinds of models that are served."""
OVERRIDES = "spark-cluster.overrides"
"""Label of the engine arguments that are not the recipe's own; absent without any."""
FIREWALL = "spark-cluster.firewall"
"""Label of the engine's containers: `present`, or `absent` where the inventory does without."""

NEEDS = "spark-cluster.needs-gib"
"""Label of a server that is loaded on request: GiB that must be available before it is started."""

LABELS_OFF = "label=disable"
"""What Docker adds to `security_opt` by itself where containers share ipc or pid."""

_TP = re.compile(r"--(?:tensor-parallel-size|tp|nnodes)[= ](\d{1,5})|-tp[= ]?(\d{1,5})")
_SERVERS = ("vllm serve", "vllm.entrypoints", "sglang.launch_server", "sglang serve")


@dataclass(frozen=True)
class LogLine:
    """A line of a log; `at` sorts by time."""

    at: str
    text: str


@dataclass(frozen=True)
class ContainerState:
    """A container of an engine.

    Attributes:
        status: Docker's (running, exited, restarting, created ...), `absent` when there is none,
            or `unknown` when its answer is not understood (then `error` says what came).
        exit_code: of its last run.
        restarts: how often Docker started it again.
        labels, env: as it was started with.
        command: the program and its arguments.
        error: what Docker says of a failed start.
        name, image: its name, its image's id.
        id: its full id; of a unit a digest of what was declared. It changes when it is made again.
        started: when it last started, as `LogLine.at`, and no later than its first line.
        devices: of the node, that it was given.
        privileged: it has all of them.
        memlock: its limit in bytes, -1 for none; None for Docker's own.
        mounts: folder of the node to where the container sees it.
        rights: what it may do, as `rights` says it; empty for a unit.
        log: lines with any of the words that were asked for, oldest first.
        runtime: `docker`, or `venv` for a unit of systemd (whose states are named like Docker's).
    """

    status: str = "running"
    exit_code: int = 0
    restarts: int = 0
    labels: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    error: str = ""
    name: str = ""
    id: str = ""
    image: str = ""
    started: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    privileged: bool = False
    memlock: int | None = None
    mounts: Mapping[str, str] = field(default_factory=dict)
    rights: str = ""
    log: tuple[LogLine, ...] = ()
    runtime: Literal["docker", "venv"] = "docker"

    @property
    def running(self) -> bool:
        return self.status == "running"

    @property
    def kept_up(self) -> bool:
        """True while it has a process, or its runtime is about to start it again."""
        return self.status in ("running", "restarting")

    @property
    def holds_nothing(self) -> bool:
        """True when it has no process, no port and no memory: it is not there, or has ended."""
        return self.status in ("absent", "created", "exited", "dead")

    @property
    def by_hand(self) -> bool:
        """True when it was stopped on purpose, by a person or by a command."""
        return self.status == "exited" and not self.error

    @property
    def start_limit_hit(self) -> bool:
        """True when it was stopped because it had ended again and again."""
        return self.status == "exited" and self.restarts >= RESTART_LIMIT

    @property
    def in_words(self) -> str:
        """Its status, or after how many restarts it was stopped."""
        return f"stopped after {self.restarts} restarts" if self.start_limit_hit else self.status

    @property
    def ours(self) -> bool:
        """True when `up` started it."""
        return any(name.startswith("spark-cluster.") for name in self.labels)

    @property
    def unloaded(self) -> bool:
        """True for a server that is loaded on request, and is not loaded now."""
        return NEEDS in self.labels and not self.error and self.status in ("created", "exited")

    @property
    def is_ray(self) -> bool:
        """True for a Ray node."""
        return "ray start" in self.words

    @property
    def is_server(self) -> bool:
        """True for an engine's server, or a headless rank of it."""
        return any(server in self.words for server in _SERVERS)

    def label(self, name: str, otherwise: str = "") -> str:
        """Return a label; another text where there is none."""
        return self.labels.get(name, otherwise)

    def number(self, name: str, otherwise: int) -> int:
        """Return a label that is a number; another number where it is none."""
        text = self.labels.get(name, "")
        return int(text) if text.isascii() and text.isdigit() and len(text) <= 5 else otherwise

    @property
    def kind(self) -> Kind:
        """The kind of its model; chat where its label names none."""
        return next((kind for kind in KINDS if kind == self.labels.get(KIND)), "chat")

    @property
    def on_ray(self) -> bool:
        """True for a server whose nodes Ray joins."""
        size = self.number(NODES, self.number(TP, 1))
        return size > 1 and self.label(EXECUTOR, "ray") == "ray"

    @property
    def words(self) -> str:
        """The command in one line."""
        return " ".join(self.command)

    @property
    def tp(self) -> int:
        """Nodes that serve together, as far as the container tells."""
        found = [int(a or b) for a, b in _TP.findall(self.words)]
        told = max(found, default=2 if self.is_ray else 1)
        return self.number(NODES, self.number(TP, told))

    def watched(self, first: ContainerState) -> ContainerState:
        """Return it as `restarting` where it was started again since a first look."""
        return replace(self, status="restarting") if self.restarts > first.restarts else self

    def since_start(self, line: LogLine) -> bool:
        """Return True when a line was written after the last start."""
        return line.at >= self.started

    def arguments(self) -> dict[str, str]:
        """Flags of the command to their values; a bare flag's is empty."""
        found: dict[str, str] = {}
        words = list(self.command)
        for index, word in enumerate(words):
            flag, equals, value = word.partition("=")
            if not flag.startswith("--"):
                continue
            follows = words[index + 1] if index + 1 < len(words) else "--"
            found[flag] = value if equals else "" if follows.startswith("--") else follows
        return found


def parse_state(text: str) -> ContainerState:
    """Read `docker container inspect NAME`; no JSON, an empty list or nothing means absent."""
    found = decoded(text)
    if not found:
        return ContainerState("absent")
    state = _container(at(found, 0))
    if state.status == "unknown":
        return replace(state, error=f"Docker's answer is not understood: {short(text)}")
    return state


def parse_containers(inspected: str, logs: str = "") -> tuple[ContainerState, ...]:
    """Read `docker container inspect NAME...`, and `==> NAME` sections with lines of their logs.

    Raises:
        ValueError: it is no JSON list.
    """
    found = decoded(inspected)
    if not isinstance(found, list):
        raise ValueError(
            f"docker container inspect: expected a JSON list, found {short(inspected)}"
        )
    return with_logs(map(_container, found), logs)


def with_logs(containers: Iterable[ContainerState], logs: str) -> tuple[ContainerState, ...]:
    """Give each container the lines of its section, `==> NAME`, of the logs."""
    sections = read_sections(logs)
    return tuple(replace(c, log=_log(sections.get(c.name, []))) for c in containers)


def rights(config: Mapping[str, Any]) -> str:
    """Return in words what a `HostConfig` gives and takes; capabilities without their `CAP_`."""
    parts = ["privileged"] if config.get("Privileged") else []
    for name, key in (
        ("cap_add", "CapAdd"),
        ("cap_drop", "CapDrop"),
        ("security_opt", "SecurityOpt"),
    ):
        found = {str(one).removeprefix("CAP_") for one in config.get(key) or ()}
        values = sorted(found - {LABELS_OFF})
        parts.append(" ".join([name, *values]) if values else f"no {name}")
    return ", ".join([*parts, f"pid {config.get('PidMode') or 'of its own'}"])


def moment(text: str) -> str:
    """Return a time stamp of Docker's in a form that sorts (Docker drops zeros at the end)."""
    found = _STAMP.match(text)
    return f"{found[1]}.{(found[2] or '').ljust(9, '0')}" if found else ""


def started_at(text: str) -> str:
    """Return the moment of a start (Docker's `StartedAt`), early enough for the first line.

    Docker notes the start when the program runs already: 3 of 7 first lines were stamped up to
    0.9 ms before it. A line of the run before is at least 100 ms older (Docker's first pause;
    systemd pauses for 2 s).
    """
    found = moment(text)
    whole, fraction = found[:19], found[20:]
    try:
        first = datetime.fromisoformat(f"{whole}.{fraction[:6]}") - _EARLY
    except (ValueError, OverflowError):  # no such day, or Docker's year 1: it never ran
        return found
    return f"{first.isoformat(timespec='microseconds')}{fraction[6:]}"


def read_sections(text: str) -> dict[str, list[str]]:
    """Lines below each `==> NAME`; of a name that comes again, those below the last one."""
    found: dict[str, list[str]] = {}
    lines: list[str] = []  # what comes before the first name belongs to none
    for line in text.splitlines():
        if line.startswith("==> "):
            lines = found[line.removeprefix("==> ")] = []
        else:
            lines.append(line)
    return found


def _container(one: Any) -> ContainerState:
    program = [text_of(at(one, "Path")), *texts_of(at(one, "Args"))]
    limits = {at(u, "Name"): at(u, "Hard") for u in objects_of(at(one, "HostConfig", "Ulimits"))}
    memlock = limits.get("memlock")
    return ContainerState(
        status=text_of(at(one, "State", "Status")) or "unknown",
        exit_code=_number(at(one, "State", "ExitCode")),
        restarts=_number(at(one, "RestartCount")),
        labels=mapping_of(at(one, "Config", "Labels")),
        command=tuple(program if program[0] else texts_of(at(one, "Config", "Cmd"))),
        error=text_of(at(one, "State", "Error")),
        name=text_of(at(one, "Name")).lstrip("/"),
        id=text_of(at(one, "Id")),
        image=text_of(at(one, "Image")),
        started=started_at(text_of(at(one, "State", "StartedAt"))),
        env=dict(pair.partition("=")[::2] for pair in texts_of(at(one, "Config", "Env"))),
        devices=tuple(
            text_of(at(d, "PathOnHost")) for d in objects_of(at(one, "HostConfig", "Devices"))
        ),
        privileged=at(one, "HostConfig", "Privileged") is True,
        memlock=memlock if isinstance(memlock, int) else None,
        mounts={
            text_of(at(m, "Source")): text_of(at(m, "Destination"))
            for m in objects_of(at(one, "Mounts"))
            if at(m, "Source")
        },
        rights=rights(config) if isinstance(config := at(one, "HostConfig"), dict) else "",
    )


def _log(lines: list[str]) -> tuple[LogLine, ...]:
    return tuple(sorted(map(_line, lines), key=lambda line: line.at))


def _line(text: str) -> LogLine:
    clean = _ANSI.sub("", text)
    found = _STAMP.match(clean)
    return LogLine(moment(clean), found[3].strip()) if found else LogLine("", clean.strip())


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


# A program of the runtime venv as systemd tells it, in the words that containers have.

DECLARED = "Declared="
"""Key of the section that systemd leaves alone (`[X-...]`), with what was declared as JSON."""

PROPERTIES = "ActiveState,Result,NRestarts,ExecMainStatus,ExecMainStartTimestamp"

SHOW = f'cat "$1" 2>/dev/null && exec systemctl show --timestamp=us+utc "$2" -p {PROPERTIES}'
"""The unit's file, which says what was declared, and what systemd knows; nothing without a file."""

_STATES = {
    "active": "running",
    "reloading": "running",
    "activating": "restarting",
    "failed": "exited",
    "inactive": "exited",
}
_MOMENT = re.compile(r"\w{3} (\d{4}-\d\d-\d\d) (\d\d:\d\d:\d\d(?:\.\d+)?) UTC")
_ENTRY = re.compile(r"^(\S+?)[+-]00:?00 \S+ [^:\n]*: ?(.*)$", re.MULTILINE)


def question(name: str, folder: str = "") -> list[str]:
    """Return the command that tells a unit's state; it fails where there is no such unit.

    Args:
        folder: of the units' files; empty for that of a node.
    """
    file = f"{folder or paths.SYSTEMD_UNITS}/{name}.service"
    return ["sh", "-c", SHOW, "unit", file, f"{name}.service"]


def declared(text: bytes) -> dict[str, Any]:
    """Return what a unit's file says that was declared: command, env, labels, spec."""
    for line in text.decode(errors="replace").splitlines():
        if line.startswith(DECLARED):
            return object_in(line.removeprefix(DECLARED))
    return {}


def stamped(log: str) -> str:
    """Return a journal's text with time stamps as `docker logs --timestamps` writes them."""
    return _ENTRY.sub(r"\1Z \2", log)


def answered(done: Mapping[str, Any] | None, name: str = "") -> ContainerState:
    """Return the program of an answer of the agent's `gather` to `runtime.question`."""
    return parse(done["stdout"] if done is not None else "", name)


def parse(text: str, name: str = "") -> ContainerState:
    """Read the answer to either question: `docker container inspect NAME`, or a unit's.

    A unit sees all devices of the node, and may lock all memory.
    """
    if not text.lstrip().startswith("[Unit]"):
        return parse_state(text)
    known = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    found = declared(text.encode())
    active = known.get("ActiveState", "")
    return ContainerState(
        status=_STATES.get(active, active or "unknown"),
        exit_code=_count(known.get("ExecMainStatus", "")),
        restarts=_count(known.get("NRestarts", "")),
        labels=mapping_of(found.get("labels")),
        command=texts_of(found.get("command")),
        # A stop by hand leaves the result of the run before.
        error=known.get("Result", "").replace("success", "") if active != "inactive" else "",
        name=name,
        id=str(found.get("spec", "")),
        started=started_at(_MOMENT.sub(r"\1T\2Z", known.get("ExecMainStartTimestamp", ""))),
        env=mapping_of(found.get("env")),
        privileged=True,
        memlock=-1,
        runtime="venv",
    )


def _count(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0
