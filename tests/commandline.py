"""The command line as a user runs it: a process of its own, with its own home and inventory."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import waiting
from factories import put
from ruamel.yaml import YAML

CHECKOUT = Path(__file__).parents[1]
LAB_INVENTORY = CHECKOUT / "inventories" / "lab.yaml"
LAB_RECIPE = CHECKOUT / "recipes" / "lab-paris.yaml"

WAIT_S = 600.0
"""Seconds after which a command or a node is taken to hang, also where much else is at work."""


@dataclass(frozen=True)
class Ran:
    """A command that has ended."""

    argv: tuple[str, ...]
    status: int
    out: str
    err: str
    seconds: float

    @property
    def printed(self) -> str:
        """All of it, in one line a line however the terminal would have folded it."""
        return self.out + self.err

    @property
    def document(self) -> dict[str, Any]:
        """Standard output, which must be one JSON document and nothing else."""
        return json.loads(self.out)


@dataclass
class CommandLine:
    """`spark-cluster` with an inventory of its own.

    Args:
        home: stands for the user's home folder and project folder; run records go below it.
        inventory: file or name.
    """

    home: Path
    inventory: str = "lab"
    environment: dict[str, str] = field(default_factory=dict)

    def __call__(self, *words: str, status: int = 0, timeout: float = WAIT_S) -> Ran:
        """Run it and wait; the exit status must be `status`, and there is never a traceback."""
        return ended(self.start(*words), status, timeout)

    def start(self, *words: str) -> Started:
        """Begin a run and do not wait."""
        argv = [sys.executable, "-m", "spark_cluster", "-i", self.inventory, *words]
        environment = {
            **os.environ,
            "PYTHONPATH": str(CHECKOUT),
            "HOME": str(self.home),
            "XDG_STATE_HOME": str(self.home / "state"),
            "COLUMNS": "400",
            **self.environment,
        }
        process = subprocess.Popen(
            argv,
            cwd=self.home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        return Started(tuple(words), process, time.monotonic())

    def json(self, *words: str, status: int = 0, timeout: float = WAIT_S) -> dict[str, Any]:
        """The JSON document of a command."""
        return self(*words, "--json", status=status, timeout=timeout).document

    def status(self, timeout: float = WAIT_S) -> dict[str, Any]:
        """What `status` prints, whatever its exit status."""
        out, _ = self.start("status", "--json").process.communicate(timeout=timeout)
        return json.loads(out)

    @property
    def record(self) -> Path:
        """The record of the last run that could change something."""
        return sorted((self.home / "state/spark-cluster/runs").glob("*.jsonl"))[-1]

    def verdicts(self) -> dict[str, set[str]]:
        """Return the resources of the last run by verdict, each as `node resource`."""
        found: dict[str, set[str]] = {"ok": set(), "change": set(), "unknown": set()}
        for line in self.record.read_text().splitlines():
            event = json.loads(line)
            if event["event"] == "Result":
                found.setdefault(event["verdict"], set()).add(
                    f"{event['node']} {event['resource']}"
                )
        return found

    def playbook(self, text: str, name: str = "play.py") -> str:
        """Write a playbook into the project folder; returns its path."""
        path = self.home / name
        path.write_text("from spark_cluster.resources import *\n\n\n" + text)
        return str(path)

    def recipe(self, name: str, *changes: tuple[str, str]) -> None:
        """Write the lab's recipe under another name, with some of its texts replaced."""
        text = LAB_RECIPE.read_text().replace("name: lab-paris", f"name: {name}")
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        put(self.home / f"recipes/{name}.yaml", text)

    def with_inventory(self, name: str, change: Callable[[dict[str, Any]], None]) -> CommandLine:
        """The same user with the lab's inventory, changed."""
        document = YAML(typ="safe").load(LAB_INVENTORY.read_text())
        change(document)
        path = self.home / f"{name}.yaml"
        path.write_text(json.dumps(document, indent=2))  # which is YAML too
        return CommandLine(self.home, str(path), self.environment)

    def with_environment(self, **more: str) -> CommandLine:
        """The same user with more variables."""
        return CommandLine(self.home, self.inventory, {**self.environment, **more})


@dataclass
class Started:
    """A run that goes on."""

    words: tuple[str, ...]
    process: subprocess.Popen[str]
    began: float

    def interrupt(self, number: int = signal.SIGINT) -> None:
        """As Ctrl-C does it, or by another signal."""
        self.process.send_signal(number)

    def end(self, *, status: int | None, timeout: float = WAIT_S) -> Ran:
        """Wait for its end; None takes any status but 0."""
        return ended(self, status, timeout)


def ended(started: Started, status: int | None, timeout: float) -> Ran:
    try:
        out, err = started.process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        started.process.kill()
        out, err = started.process.communicate()
        raise AssertionError(
            f"{started.words} is not done after {timeout} s:\n{out}{err}"
        ) from None
    ran = Ran(started.words, started.process.returncode, out, err, time.monotonic() - started.began)
    # What `logs` prints is others': Ray ends with a traceback when the head is too busy to answer.
    ours = ran.err if started.words[:1] == ("logs",) else ran.printed
    assert "Traceback" not in ours, ran.printed
    fits = ran.status != 0 if status is None else ran.status == status
    assert fits, f"status {ran.status}, not {status}:\n{ran.printed}"
    return ran


def until(
    condition: Callable[[], Any], limit_s: float = WAIT_S, what: str = "", every: float = 0.2
) -> Any:
    """Return the first true value of a condition; no limit is shorter than a hang."""
    return waiting.until(condition, max(limit_s, waiting.HANG_S), what, every)


def processes(document: Mapping[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Return the processes of each node of a `vram` document."""
    return {node["name"]: node["processes"] for node in document["nodes"]}
