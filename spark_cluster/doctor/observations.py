"""The answers of one node, read on demand: a missing answer is `NotSeen`, never empty."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from spark_cluster.config import fact_gathering
from spark_cluster.config.facts import Facts, Hca, Interface, Memory
from spark_cluster.config.pins import Pins
from spark_cluster.config.topology import cabled_port
from spark_cluster.doctor.question import Context, NodeSource, sources
from spark_cluster.doctor.verdict import NotSeen
from spark_cluster.engine.names import PROGRAMS
from spark_cluster.node import containers
from spark_cluster.node.containers import ContainerState, parse_containers, with_logs

TIMEOUT_S = 20.0
"""Seconds that a command may take."""


@dataclass(frozen=True)
class Ran:
    """A command that ran."""

    status: int
    stdout: str
    stderr: str = ""

    @property
    def output(self) -> str:
        """Both outputs in one line."""
        return " ".join((self.stdout + " " + self.stderr).split())


@dataclass(frozen=True)
class Observations:
    """A node's answer to `question()`, and what the inventory says of the node.

    Attributes:
        node: its name.
        answer: of the agent's `gather`.
        user: who logs in there.
        linked: whether there are other nodes, so that a link is needed.
        mtu: what the inventory wants on the link, bytes.
        docker_users: the inventory puts the login user into the group docker.
        pins: combinations of kernel and driver that are known; None when they are not at hand.
    """

    node: str
    answer: Mapping[str, Any]
    user: str = "root"
    linked: bool = True
    mtu: int = 9000
    docker_users: bool = False
    pins: Pins | None = field(default=None, repr=False)
    _sources: Mapping[str, NodeSource] = field(
        default_factory=lambda: sources(Context()), repr=False
    )
    _prefix: str = ""

    # -- the answer ------------------------------------------------------------------------------

    def ran(self, name: str) -> Ran:
        """A command, whatever status it ended with.

        Raises:
            NotSeen: there is no such command, or it did not end in time.
        """
        done = self.answer["commands"].get(name)
        if done is None:
            raise NotSeen(self._prefix + self._why_not(name))
        return Ran(done["status"], done["stdout"], done.get("stderr", ""))

    def output(self, name: str) -> str:
        """Return what a command printed.

        Raises:
            NotSeen: as `ran`, or it failed.
        """
        done = self.ran(name)
        if done.status != 0:
            output = done.output[-200:] or "it printed nothing"
            label = self._prefix + self._sources[name].label
            raise NotSeen(f"{label}: status {done.status}: {output}")
        return done.stdout

    def reply(self, name: str) -> str:
        """The body of an HTTP service's answer.

        Raises:
            NotSeen: there is no answer, or its status is not 200.
        """
        answer = self.answer["requests"].get(name)
        if answer is not None and answer["status"] == 200:
            return str(answer["body"])
        why = self.hangs(name) or "no answer"
        if answer is not None:
            body = " ".join(answer["body"].split())[:200]
            why = answer.get("reason") or f"HTTP status {answer['status']}: {body}"
        raise NotSeen(f"{self._prefix}{self._sources[name].label}: {why}")

    def text(self, name: str) -> str:
        """A file's text.

        Raises:
            NotSeen: it is not there or cannot be read.
        """
        found = self.answer["files"].get(name)
        if found is None:
            why = self.hangs(name) or f"{self._sources[name].label}: not found"
            raise NotSeen(self._prefix + why)
        return str(found)

    def there(self, name: str) -> bool:
        """Return whether a file exists."""
        return self.answer["files"].get(name) is not None

    def tree(self, name: str) -> dict[str, str]:
        """The files of a glob: path to text, without the line's end; empty when there is none."""
        return {path: text.strip() for path, text in self.answer["trees"][name].items()}

    def hangs(self, name: str) -> str:
        """Return the agent's message on a command that timed out; empty when it did not."""
        return str(self.answer.get("late", {}).get(name, ""))

    def _why_not(self, name: str) -> str:
        source = self._sources[name]
        if self.hangs(name):
            return self.hangs(name)
        if source.tool and self.answer["commands"].get("tools") and not self.has(source.tool):
            return f"{source.label}: there is no {source.tool} on the node"
        if source.tool:
            return f"{source.label}: no answer within {TIMEOUT_S:g} s"
        return f"{source.label}: there is no such command, or it did not answer"

    def named(self) -> Observations:
        """The same, for checks of several nodes: what is not seen says on which."""
        return replace(self, _prefix=f"{self.node}: ")

    # -- read on demand --------------------------------------------------------------------------

    def has(self, tool: str) -> bool:
        """Return whether a program is installed."""
        return tool in self.output("tools").split()

    @cached_property
    def facts(self) -> Facts:
        """The facts that the same answer makes, with the kernel from /proc."""
        found = fact_gathering.facts(self.answer)
        return replace(found, kernel=self.kernel) if self.there("kernel") else found

    @property
    def kernel(self) -> str:
        return self.text("kernel").strip()

    @property
    def memory(self) -> Memory:
        """The memory; raises NotSeen without /proc/meminfo."""
        self.text("meminfo")
        return self.facts.memory

    @property
    def hcas(self) -> tuple[Hca, ...]:
        """The functions of the ConnectX-7. Raises NotSeen when nothing lists them."""
        self.output("hcas")
        return self.facts.hcas

    @property
    def twins(self) -> tuple[Hca, ...]:
        """The up functions of the cabled port. Raises NotSeen without a list."""
        return cabled_port(self.facts) if self.hcas else ()

    @property
    def interfaces(self) -> tuple[Interface, ...]:
        """The interfaces; raises NotSeen when `ip` does not answer."""
        self.output("ip")
        return self.facts.interfaces

    @property
    def twin_interfaces(self) -> tuple[Interface, ...]:
        """The interfaces of the twins that are up, in their order."""
        found = {interface.name: interface for interface in self.interfaces}
        return tuple(found[twin.interface] for twin in self.twins if twin.interface in found)

    @cached_property
    def engines(self) -> tuple[ContainerState, ...]:
        """The engine's containers, and its units of the runtime venv, with their logs.

        Raises:
            NotSeen: Docker, systemd or its journal does not answer.
        """
        units = tuple(self._units())
        if units:
            units = with_logs(units, containers.stamped(self.output("unit_logs")))
        if not self.has("docker"):
            return units
        return (*parse_containers(self.output("containers"), self.output("logs")), *units)

    def _units(self) -> Iterator[ContainerState]:
        for name in PROGRAMS:
            if self.hangs(name):
                raise NotSeen(self._prefix + self.hangs(name))
            done = self.answer["commands"].get(name)
            state = containers.parse(done["stdout"], name) if done and done["stdout"] else None
            if state is not None and state.status != "absent":
                yield state

    @property
    def units(self) -> dict[str, dict[str, str]]:
        """Properties of systemd units, by name without `.service`."""
        blocks = self.output("units").strip().split("\n\n")
        read = (dict(line.partition("=")[::2] for line in block.splitlines()) for block in blocks)
        return {unit["Id"].removesuffix(".service"): unit for unit in read if "Id" in unit}

    @property
    def time(self) -> float:
        """Its clock when it was asked, seconds."""
        return float(self.output("clock"))

    @property
    def now(self) -> str:
        """The same as Docker writes moments."""
        return datetime.fromtimestamp(self.time, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def of_hca(tree: Mapping[str, str]) -> dict[str, str]:
    """A tree below /sys/class/infiniband, by HCA."""
    found = (re.match(r"/sys/class/infiniband/([^/]+)/", path) for path in tree)
    return {m[1]: text for m, text in zip(found, tree.values(), strict=True) if m}
