"""A node with a docker for programs that ask it by `local_server.output`: that is answered in the
tests' own process, because an interpreter for each question would take most of the time of those
tests. What would drop this machine's caches or guard its memory is only noted."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fake_processes
import pytest
from resource_fixtures import Node

from spark_cluster.node import load_watch, local_server


class DockerNode(Node):
    """A scratch node whose docker is on PATH.

    Attributes:
        memory: what was done for the node's memory.
    """

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, folder / "bin")
        self.memory: list[str] = []
        self.install("docker")
        monkeypatch.setenv("PATH", str(self.bin), prepend=os.pathsep)
        run = local_server.output

        def output(argv: Sequence[str], limit_s: float = local_server.COMMAND_S) -> str | None:
            if argv[0] == "docker":
                status, out, _ = fake_processes.call(folder, "docker", "docker", argv[1:], "")
                return out if status == 0 else None
            if done := _of_memory(argv):
                self.memory.append(done)
                return ""
            return run(argv, limit_s)

        monkeypatch.setattr(local_server, "output", output)

    def has(self, name: str, labels: dict[str, str], status: str = "running", **about: Any) -> None:
        """Have a container; `about` is more of what docker tells of it."""
        state = {"Status": status, "StartedAt": "t", "Error": ""}
        told = {"Id": "one", "RestartCount": 0, "State": state, "Config": {"Labels": labels}}
        with self.state("docker") as docker:
            docker.setdefault("containers", {})[name] = {**told, "pids": [7], **about}

    @property
    def acts(self) -> list[str]:
        """The stops and starts of containers."""
        done = [words[1:] for words in self.calls("docker") if words[1] in ("stop", "start")]
        return [f"{words[0]} {words[-1]}" for words in done]


def _of_memory(argv: Sequence[str]) -> str:
    """Return what a command does for the node's memory, in words; empty for another one."""
    if load_watch.RECLAIM in argv:
        return "prepare"
    unit = next((word for word in argv if "load-guard" in word), "").removeprefix("--unit=")
    name = unit.removeprefix("spark-cluster-load-guard-").removesuffix(".service")
    return f"{'guard' if argv[0] == 'systemd-run' else 'end'} {name}" if name else ""
