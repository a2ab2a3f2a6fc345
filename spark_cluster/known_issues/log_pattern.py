"""A text of a log by which a known issue is found."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Literal

from pydantic import Field

from spark_cluster.config.fields import Pattern
from spark_cluster.config.schema import Schema
from spark_cluster.known_issues.memory_holders import other_holder

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

    @property
    def regex(self) -> re.Pattern[str]:
        return re.compile(self.pattern if self.pattern is not None else re.escape(self.has))

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
