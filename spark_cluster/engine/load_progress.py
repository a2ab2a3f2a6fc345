"""The time limit of a start, which grows while the engine is seen to compile, tune or load.

The first start after a change of NCCL's devices compiled kernels for 36 minutes, without a line of
log for most of them (source: deepseek-dspark-40). So nothing is concluded from the clock alone.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping

from spark_cluster.engine import logs, runtime
from spark_cluster.engine.deployment import Server
from spark_cluster.engine.names import RAY
from spark_cluster.node import unit_state
from spark_cluster.node.engine_caches import of_environment, short
from spark_cluster.runner.play import Play

LONGEST = 3
"""Times its limit that a start is waited for at most: a container can pretend to be at work."""

QUIET = 1 / 6
"""Share of its limit in which something must move: 300 s of the usual 1800."""

LOOKS = 10
"""Looks within that time, so that a short pause between two compilers is no end."""

COMPILERS = frozenset(
    [
        "nvcc",
        "cicc",
        "ptxas",
        "cudafe++",
        "fatbinary",
        "nvlink",
        "ninja",
        "cc1plus",
        "gcc",
        "g++",
        "clang",
        "clang++",
    ]
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
"""What may move, to how it is now: one that differs from the look before has moved."""


class TimeLimit:
    """The time limit of one start.

    Args:
        limit_s: seconds until it is looked whether anything moves.
        look: tells how that is; None for what has no such signs: then the limit is a hard one.
        tell: is told once that the limit has passed, and why it is waited on.
    """

    def __init__(
        self, limit_s: float, look: Callable[[], Seen] | None, tell: Callable[[str], object]
    ) -> None:
        self.limit_s, self._look, self._tell = limit_s, look, tell
        self._began = time.monotonic()
        self._next = self._moved = self._began + limit_s
        self._before: Seen | None = None
        self._told = False

    def passed(self) -> str:
        """Return why it is not waited for any longer; empty while it is."""
        if time.monotonic() <= self._next:
            return ""
        if self._look is None:
            return f"after {self.limit_s:g} s"
        now, before = self._look(), self._before
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
        if not self._told:
            self._told = True
            self._tell(
                f"not healthy after {self.limit_s:g} s (ready_timeout_s), but at work: "
                f"{'; '.join(moved)}; it is waited for while that goes on, "
                f"{self.limit_s * LONGEST:g} s at most"
            )


def look(play: Play, server: Server) -> Seen:
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
        told = session.request("gather", commands=asked)["commands"]
        printed = {name: done["stdout"] if done else "" for name, done in told.items()}
        found[f"compilers on {node.name}"] = _compilers([printed[f"cpu {n}"] for n in programs])
        states = [unit_state.answered(told[name]) for name in programs]
        image = next((state.image for state in states if state.image), "")
        folder = short(image) if image else of_environment(server.venv)
        root = server.cache_root
        cache = session.request("caches", what="written", folder=root, name=folder)
        if cache["files"]:
            size = f"{cache['files']} files, {cache['bytes']} bytes"
            found[f"compiled code on {node.name}"] = size
        found[f"log on {node.name}"] = _working(logs.read(session, server.program, lines=20))
    return found


def _compilers(tables: list[str]) -> str:
    """Return the compilers in tables of process id, CPU seconds and name."""
    rows = [line.split() for table in tables for line in table.splitlines()]
    known = [f"{row[2]} {row[0]}: {row[1]} s" for row in rows if len(row) == 3 and _compiles(row)]
    return ", ".join(known[:MOST])


def _compiles(row: list[str]) -> bool:
    return row[2] in COMPILERS and row[0].isdecimal() and row[1].isdecimal()


def _working(log: str) -> str:
    """Return the last line of a log that is about work."""
    found = (line for line in reversed(log.splitlines()) if WORKING.search(line))
    return logs.last_line(next(found, ""))[:200]
