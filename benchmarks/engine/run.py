"""Runs the tools in turn over the same nodes and says what each run cost."""

from __future__ import annotations

import dataclasses
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.engine import work
from benchmarks.engine.nodes import CACHE, Site
from benchmarks.engine.ours import Ours
from benchmarks.engine.peers import Ansible, Floor, Mitogen, Pyinfra, PyinfraPlan, Tool, ToolError

TOOLS: dict[str, type[Tool]] = {
    tool.name: tool for tool in (Ours, Ansible, Mitogen, Pyinfra, PyinfraPlan, Floor)
}
CHANGING, UNCHANGED = "changing", "unchanged"
_MEASURE = Path(__file__).with_name("measure.py")
_LONGEST = 600.0


@dataclass(frozen=True)
class Cost:
    """The cost of one run, or the median of several.

    Args:
        wall: seconds.
        cpu: user and system seconds of all local processes.
        connections, sessions, turns: of the node with the most; sessions is their mean.
        bytes_up, bytes_down: payload of all nodes.
    """

    tool: str
    nodes: int
    kind: str
    wall: float
    cpu: float
    connections: float
    sessions: float
    turns: float
    bytes_up: float
    bytes_down: float


Report = Callable[[Cost], None]


class Bench:
    """Measures tools on nodes.

    Args:
        site: the nodes.
        folder: scratch.
        report: called with every run as it ends.
    """

    def __init__(self, site: Site, folder: Path, report: Report) -> None:
        self._site, self._folder, self._report = site, folder, report
        self._sources = folder / "sources"
        work.Sources(self._sources).write()

    def compare(self, names: Iterable[str], counts: Iterable[int], runs: int) -> list[Cost]:
        """Changing and unchanged runs of all tools, in turn, so that a busy spell hits all alike.

        One changing run of each tool is thrown away first: it fills caches on both sides.

        Raises:
            ToolError: a tool did not do the play, or said that it did something else.
        """
        costs = []
        for count in counts:
            site = self._site.first(count)
            tools = [self._tool(name, site) for name in names]
            for tool in tools:
                self._changing(tool)
            for _ in range(runs):
                for tool in tools:
                    for run in (self._changing, self._unchanged):
                        costs.append(run(tool))
                        self._report(costs[-1])
            site.reset()
        return costs

    def scale(self, counts: Iterable[int], runs: int) -> list[Cost]:
        """Unchanged runs on more and more nodes: ours, and the floor to compare with."""
        costs = []
        for count in counts:
            site = self._site.first(count)
            tools = [self._tool(name, site) for name in (Ours.name, Floor.name)]
            self._changing(tools[0])
            for tool in tools:
                self._unchanged(tool)  # thrown away
            for _ in range(runs):
                for tool in tools:
                    costs.append(self._unchanged(tool))
                    self._report(costs[-1])
        return costs

    def _tool(self, name: str, site: Site) -> Tool:
        return TOOLS[name](self._folder / f"{name}-{len(site.nodes)}", site, self._sources)

    def _changing(self, tool: Tool) -> Cost:
        tool.site.reset()
        cost = self._measure(tool, CHANGING, work.CHANGES)
        for node in tool.site.nodes:
            if (found := tool.site.state(node)) != work.expected():
                wrong = {k: v for k, v in found.items() if v != work.expected()[k]}
                raise ToolError(f"{tool.name} left {node.name} in another state: {wrong}")
        return cost

    def _unchanged(self, tool: Tool) -> Cost:
        return self._measure(tool, UNCHANGED, 0)

    def _measure(self, tool: Tool, kind: str, changes: int) -> Cost:
        sessions = tool.site.sessions()
        tool.site.link.take()
        output, spent = self._run(tool)
        traffic = tool.site.link.take()
        sessions = tool.site.sessions() - sessions
        if spent["status"]:
            raise ToolError(f"{tool.name} ended with {spent['status']}:\n{output[-3000:]}")
        said = tool.changes(output)
        names = [node.name for node in tool.site.nodes]
        wanted = {"all": changes * len(names)} if "all" in said else dict.fromkeys(names, changes)
        if said != wanted:
            raise ToolError(f"{tool.name}, {kind}: changes {said}, not {wanted}\n{output[-3000:]}")
        seen = [traffic[node.address] for node in tool.site.nodes]
        return Cost(
            tool=tool.name,
            nodes=len(names),
            kind=kind,
            wall=spent["wall"],
            cpu=spent["cpu"],
            connections=max(one.connections for one in seen),
            sessions=sessions / len(names),
            turns=max(one.turns for one in seen),
            bytes_up=sum(one.bytes_up for one in seen),
            bytes_down=sum(one.bytes_down for one in seen),
        )

    def _run(self, tool: Tool) -> tuple[str, dict[str, float]]:
        result, output = tool.folder / "cost.json", tool.folder / "output.txt"
        measured = [sys.executable, "-I", "-S", str(_MEASURE), str(result), str(output), "--"]
        ends_with_us = ["setpriv", "--pdeathsig", "TERM"]
        subprocess.run(
            [*ends_with_us, *tool.site.link.command(*measured, *tool.command())],
            cwd=tool.folder,
            env=self._variables() | tool.variables(),
            input=tool.answers.encode(),
            check=True,
            timeout=_LONGEST,
        )
        spent: dict[str, float] = json.loads(result.read_text("utf-8"))
        return output.read_text("utf-8", "replace"), spent

    def _variables(self) -> dict[str, str]:
        """A home of its own, so that no user's settings matter; compiled modules are kept."""
        home = self._folder / "home"
        home.mkdir(exist_ok=True)
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "LANG": "C.UTF-8",
            "COLUMNS": "200",
            "PYTHONPYCACHEPREFIX": str(CACHE / "pycache"),
        }


def medians(costs: Iterable[Cost]) -> list[Cost]:
    """Return one cost for each tool, number of nodes and kind, in the order they first came."""
    groups: dict[tuple[str, int, str], list[Cost]] = {}
    for cost in costs:
        groups.setdefault((cost.tool, cost.nodes, cost.kind), []).append(cost)
    middle = []
    for group in groups.values():
        fields = [
            f.name for f in dataclasses.fields(Cost) if f.name not in ("tool", "nodes", "kind")
        ]
        values = {name: statistics.median(getattr(cost, name) for cost in group) for name in fields}
        middle.append(dataclasses.replace(group[0], **values))
    return middle
