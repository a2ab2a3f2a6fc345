"""A text of a log by which a known issue is found."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from pydantic import Field

from spark_cluster.config.schema import Pattern, Schema

_GROUP = re.compile(r"\{([a-z]+)\}")


class LogPattern(Schema):
    """A text in a log.

    `has` is a literal that every such line has: logs are searched for it first, which is what
    makes a long one quick. `pattern` decides; by default `has` does.
    """

    has: str = Field(min_length=5)
    pattern: Pattern | None = None
    unless: Pattern | None = None
    """must not match in the line"""
    trace: Pattern | None = None
    """must match in the lines just before, as a traceback has them"""
    memory_holder: Literal["another", "no-other"] | None = None
    """whether a process next to the engine holds GPU memory, as PyTorch's line tells; with
    `another`, `{pid}` and `{gib}` of `cause` are that process's"""
    cause: str = ""
    """the cause where a line matches this; `{name}` is what the pattern's group of that name
    matched"""

    @cached_property
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern if self.pattern is not None else re.escape(self.has))

    def is_in(self, line: str) -> bool:
        """Return True when a line shows it; what stands before is not looked at."""
        shown = self.has in line and self.regex.search(line)
        excluded = self.unless is not None and re.search(self.unless, line)
        return bool(shown and not excluded) and self.holder_as_wanted(line)

    def cause_in(self, line: str) -> str:
        """Return the cause that a line tells; empty where it tells none."""
        found = self.regex.search(line) if self.cause else None
        if found is None or not self.holder_as_wanted(line):
            return ""
        told = {name: text or "" for name, text in found.groupdict().items()}
        told |= self._holder_in(line)
        return _GROUP.sub(lambda group: told.get(group[1], group[0]), self.cause)

    def holder_as_wanted(self, line: str) -> bool:
        """Return True where the line tells of other processes what `memory_holder` wants."""
        if self.memory_holder is None:
            return True
        return (other_holder(line) is not None) == (self.memory_holder == "another")

    def _holder_in(self, line: str) -> Mapping[str, str]:
        holder = other_holder(line) if self.memory_holder == "another" else None
        return {"pid": holder.pid, "gib": f"{holder.gib:.2f}"} if holder else {}


# The processes that PyTorch names when CUDA has no memory left, without the engine itself.
#
# In a container NVML's PIDs are not those that a process knows itself by, so that PyTorch prints
# its own process as `Process N`; and where NVML does not know an amount, it prints 2**64 bytes.

LEAST_GIB = 5.0
"""What another process must hold to be named; a desktop holds less."""

MOST_GIB = 4096.0
"""No GPU has more: the limit where a line does not tell the capacity."""

ROUNDED_GIB = 0.02
"""Amounts are printed with two decimals."""

_UNITS = {"GiB": 1.0, "MiB": 2.0**-10, "KiB": 2.0**-20, "bytes": 2.0**-30}
_AMOUNT = r"(\d{1,20}(?:\.\d{1,9})?) (GiB|MiB|KiB|bytes)"

_HELD = re.compile(rf"\bProcess (\d{{1,19}}) has {_AMOUNT} memory in use")
_OWN = re.compile(r"\bthis process has \d")
_CAPACITY = re.compile(rf"total capaci?ty of {_AMOUNT}")
_ALLOCATED = re.compile(rf"{_AMOUNT} is allocated by PyTorch")
_RESERVED = re.compile(rf"{_AMOUNT} is reserved by PyTorch")


@dataclass(frozen=True)
class Holder:
    """A process and the GPU memory that it holds."""

    pid: str
    gib: float


def other_holder(line: str) -> Holder | None:
    """Return the process that holds the most next to the engine itself; None where no other one is
    certain to hold much.

    >>> other_holder("Process 7 has 70.00 GiB memory in use. Including non-PyTorch memory, this "
    ...              "process has 9.00 GiB memory in use.").pid
    '7'
    """
    holders = _without_own(line, _holders(line))
    others = [holder for holder in holders if holder.gib >= LEAST_GIB]
    return max(others, key=lambda holder: holder.gib, default=None)


def _holders(line: str) -> list[Holder]:
    """Return what a line tells of other PIDs, each once, without what the GPU cannot hold."""
    most = _first_gib(_CAPACITY, line) or MOST_GIB
    told = (Holder(pid, _gib(n, unit)) for pid, n, unit in _HELD.findall(line))
    return [holder for holder in dict.fromkeys(told) if holder.gib <= most]


def _without_own(line: str, holders: list[Holder]) -> list[Holder]:
    """Leave out the engine itself: the least that covers what PyTorch has of it."""
    if _OWN.search(line):
        return holders
    allocated = _first_gib(_ALLOCATED, line)
    if allocated is None:  # nothing tells which of them it is
        return []
    needed = allocated + (_first_gib(_RESERVED, line) or 0.0) - ROUNDED_GIB
    covering = [holder for holder in holders if holder.gib >= needed]
    own = min(covering, key=lambda holder: holder.gib, default=None)
    return [holder for holder in holders if holder is not own]


def _first_gib(pattern: re.Pattern[str], line: str) -> float | None:
    found = pattern.search(line)
    return _gib(found[1], found[2]) if found else None


def _gib(number: str, unit: str) -> float:
    return float(number) * _UNITS[unit]
