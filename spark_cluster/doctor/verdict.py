"""The result of a check: a status, what was found, and the known issue that explains it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from spark_cluster.issues.entries import Effect

Status = Literal["ok", "warn", "fail", "unknown"]

ORDER: dict[Status, int] = {"fail": 0, "warn": 1, "unknown": 2, "ok": 3}
"""Problems first, then what could not be seen."""


class NotSeen(Exception):
    """Something that a check needs could not be seen; the text says what was tried."""


@dataclass(frozen=True)
class Verdict:
    """The answer of a check.

    Attributes:
        found: what is there, in words and figures.
        issue: id of the known issue that explains it; empty where only one can.
        fill: values for the placeholders of its cause and fix, e.g. PID.
    """

    status: Status
    found: str
    issue: str = ""
    fill: Mapping[str, str] = field(default_factory=dict)


def ok(found: str) -> Verdict:
    """Return the verdict that all is as it should be."""
    return Verdict("ok", found)


def warn(found: str, issue: str = "", **fill: str) -> Verdict:
    """Return the verdict that it works, but is at risk or slower than it could be."""
    return Verdict("warn", found, issue, fill)


def fail(found: str, issue: str = "", **fill: str) -> Verdict:
    """Return the verdict that it does not work, or far from how it should."""
    return Verdict("fail", found, issue, fill)


def unknown(tried: str) -> Verdict:
    """Return the verdict that it could not be seen, which is not the same as being fine."""
    return Verdict("unknown", tried)


@dataclass(frozen=True)
class CheckResult:
    """A verdict with all that belongs to it.

    Attributes:
        id: `area.what`, e.g. `link.twins-one-subnet`.
        node: its name, or the names of those that were compared, joined by `+`.
        found: what is there.
        title: what the check makes sure of.
        looked_at: where it looked.
        effect: what comes of it.
        issue: id of the known issue; empty when all is well, or nothing is known of it.
        cause, fix: the known issue's, for this node.
    """

    id: str
    node: str
    status: Status
    found: str
    title: str
    looked_at: str
    effect: Effect
    issue: str = ""
    cause: str = ""
    fix: str = ""

    @property
    def area(self) -> str:
        return self.id.partition(".")[0]

    @property
    def order(self) -> tuple[int, str, str]:
        """The sort key: problems first."""
        return ORDER[self.status], self.id, self.node
