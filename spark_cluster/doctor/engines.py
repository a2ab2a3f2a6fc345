"""The engine's containers on one node: how each was run, how it is, what its log says."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

_STAMP = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d+))?Z ?(.*)$")
_ANSI = re.compile(r"\x1b\[[0-9;]*m")
_TP = re.compile(r"--(?:tensor-parallel-size|tp|nnodes)[= ](\d+)|-tp[= ]?(\d+)")


@dataclass(frozen=True)
class Line:
    """A line of a log; `at` sorts by time."""

    at: str
    text: str


@dataclass(frozen=True)
class Engine:
    """One container.

    Attributes:
        id, name, image: its full id, its name, its image's id.
        status: running, exited, restarting, created ...
        started: when it last started, as `Line.at`.
        command: the program and its arguments.
        env: its environment.
        devices: of the node, that it was given.
        memlock: its limit in bytes, -1 for none; None for Docker's own.
        mounts: folder of the node to where the container sees it.
        log: lines with any of the words that were asked for, oldest first.
    """

    name: str
    id: str = ""
    image: str = ""
    status: str = "running"
    exit_code: int = 0
    error: str = ""
    restarts: int = 0
    started: str = ""
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    privileged: bool = False
    memlock: int | None = None
    mounts: Mapping[str, str] = field(default_factory=dict)
    log: tuple[Line, ...] = ()

    @property
    def running(self) -> bool:
        return self.status == "running"

    @property
    def ours(self) -> bool:
        """Whether `up` started it."""
        return any(name.startswith("spark-cluster.") for name in self.labels)

    @property
    def is_ray(self) -> bool:
        """Whether it is a Ray node."""
        return "ray start" in self.words

    @property
    def is_server(self) -> bool:
        """Whether it runs vLLM's server (or a headless rank of it)."""
        return "vllm serve" in self.words or "vllm.entrypoints" in self.words

    @property
    def words(self) -> str:
        """The command in one line."""
        return " ".join(self.command)

    @property
    def tp(self) -> int:
        """Nodes that serve together, as far as the container tells."""
        said = self.labels.get("spark-cluster.tp", "")
        if said.isdigit():
            return int(said)
        found = [int(a or b) for a, b in _TP.findall(self.words)]
        return max(found, default=2 if self.is_ray else 1)

    def since_start(self, line: Line) -> bool:
        """Whether a line was written after the last start."""
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


def moment(text: str) -> str:
    """A time stamp of Docker's in a form that sorts (it drops zeros at the end)."""
    found = _STAMP.match(text)
    return f"{found[1]}.{(found[2] or '').ljust(9, '0')}" if found else ""


def read_engines(inspected: str, logs: str) -> tuple[Engine, ...]:
    """`docker container inspect` (a JSON list) with `==> NAME` sections of log lines."""
    sections = read_sections(logs)
    return tuple(
        _engine(one, sections.get(one["Name"].lstrip("/"), []))
        for one in json.loads(inspected or "[]")
    )


def read_sections(text: str) -> dict[str, list[str]]:
    """Lines below each `==> NAME`."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line.startswith("==> "):
            found[line.removeprefix("==> ")] = []
        elif found:
            found[next(reversed(found))].append(line)
    return found


def _engine(one: Mapping[str, Any], lines: list[str]) -> Engine:
    config, host, state = one["Config"], one["HostConfig"], one["State"]
    ulimits = {u["Name"]: int(u["Hard"]) for u in host.get("Ulimits") or []}
    program = [one.get("Path", ""), *(one.get("Args") or [])]
    return Engine(
        name=one["Name"].lstrip("/"),
        id=one.get("Id", ""),
        image=one.get("Image", ""),
        status=state["Status"],
        exit_code=int(state.get("ExitCode", 0)),
        error=state.get("Error", ""),
        restarts=int(one.get("RestartCount", 0)),
        started=moment(state.get("StartedAt", "")),
        command=tuple(program),
        env=dict(pair.partition("=")[::2] for pair in config.get("Env") or []),
        labels=config.get("Labels") or {},
        devices=tuple(d["PathOnHost"] for d in host.get("Devices") or []),
        privileged=bool(host.get("Privileged")),
        memlock=ulimits.get("memlock"),
        mounts={m["Source"]: m["Destination"] for m in one.get("Mounts") or [] if m.get("Source")},
        log=tuple(sorted(map(_line, lines), key=lambda line: line.at)),
    )


def _line(text: str) -> Line:
    clean = _ANSI.sub("", text)
    found = _STAMP.match(clean)
    return Line(moment(clean), found[3].strip()) if found else Line("", clean.strip())
