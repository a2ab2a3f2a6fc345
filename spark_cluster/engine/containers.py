"""Containers of the engine as `docker container inspect` tells them: the one parser of it.

What comes is foreign input: nothing in it is taken for granted, and a field of another type than
Docker's counts as not there. On the node, `resources/container.py` reads the fields that it
compares by itself (it has the standard library only, and its own version of this package).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Literal

from spark_cluster.engine.replies import at, decoded, short, text_of
from spark_cluster.node.supervision.start_limit import RESTARTS

_STAMP = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?Z ?(.*)$")
_EARLY = timedelta(milliseconds=50)
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
NODES = "spark-cluster.nodes"
"""Label of how many nodes serve together, where that is not the tensor-parallel size."""
DATA_PARALLEL = "spark-cluster.data-parallel"
"""Label of how many data-parallel ranks the server has, where there are several."""
RECIPE = "spark-cluster.recipe"
"""Label of the recipe that a program was started with."""
OVERRIDES = "spark-cluster.overrides"
"""Label of the engine arguments that are not the recipe's own; absent without any."""
FIREWALL = "spark-cluster.firewall"
"""Label of the engine's containers: `present`, or `absent` where the inventory does without."""

NEEDS = "spark-cluster.needs-gib"
"""Label of a server that is loaded on request: GiB that must be available before it is started."""

_TP = re.compile(r"--(?:tensor-parallel-size|tp|nnodes)[= ](\d+)|-tp[= ]?(\d+)")
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
        name, id, image: its name, its full id, its image's id.
        started: when it last started, as `LogLine.at`, and no later than its first line.
        devices: of the node, that it was given.
        privileged: it has all of them.
        memlock: its limit in bytes, -1 for none; None for Docker's own.
        mounts: folder of the node to where the container sees it.
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
    log: tuple[LogLine, ...] = ()
    runtime: Literal["docker", "venv"] = "docker"

    @property
    def running(self) -> bool:
        return self.status == "running"

    @property
    def start_limit_hit(self) -> bool:
        """True when it was stopped because it had ended again and again."""
        return self.status == "exited" and self.restarts >= RESTARTS

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

    @property
    def words(self) -> str:
        """The command in one line."""
        return " ".join(self.command)

    @property
    def tp(self) -> int:
        """Nodes that serve together, as far as the container tells."""
        label = self.labels.get(NODES, self.labels.get("spark-cluster.tp", ""))
        if label.isdigit():
            return int(label)
        found = [int(a or b) for a, b in _TP.findall(self.words)]
        return max(found, default=2 if self.is_ray else 1)

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
    """Lines below each `==> NAME`."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("==> "):
            found[line.removeprefix("==> ")] = []
        elif found:
            found[next(reversed(found))].append(line)
    return found


def _container(one: Any) -> ContainerState:
    status = text_of(at(one, "State", "Status"))
    if not status:
        return ContainerState("unknown")
    program = [text_of(at(one, "Path")), *_texts(at(one, "Args"))]
    limits = {at(u, "Name"): at(u, "Hard") for u in _list(at(one, "HostConfig", "Ulimits"))}
    memlock = limits.get("memlock")
    return ContainerState(
        status=status,
        exit_code=_number(at(one, "State", "ExitCode")),
        restarts=_number(at(one, "RestartCount")),
        labels={k: str(v) for k, v in _map(at(one, "Config", "Labels")).items()},
        command=tuple(program if program[0] else _texts(at(one, "Config", "Cmd"))),
        error=text_of(at(one, "State", "Error")),
        name=text_of(at(one, "Name")).lstrip("/"),
        id=text_of(at(one, "Id")),
        image=text_of(at(one, "Image")),
        started=started_at(text_of(at(one, "State", "StartedAt"))),
        env=dict(pair.partition("=")[::2] for pair in _texts(at(one, "Config", "Env"))),
        devices=tuple(
            text_of(at(d, "PathOnHost")) for d in _list(at(one, "HostConfig", "Devices"))
        ),
        privileged=at(one, "HostConfig", "Privileged") is True,
        memlock=memlock if isinstance(memlock, int) else None,
        mounts={
            text_of(at(m, "Source")): text_of(at(m, "Destination"))
            for m in _list(at(one, "Mounts"))
            if at(m, "Source")
        },
    )


def _log(lines: list[str]) -> tuple[LogLine, ...]:
    return tuple(sorted(map(_line, lines), key=lambda line: line.at))


def _line(text: str) -> LogLine:
    clean = _ANSI.sub("", text)
    found = _STAMP.match(clean)
    return LogLine(moment(clean), found[3].strip()) if found else LogLine("", clean.strip())


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _texts(value: Any) -> list[str]:
    return [str(item) for item in _list(value)]


def _map(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
