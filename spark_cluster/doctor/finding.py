"""What a check says: a status, what was found, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Status = Literal["ok", "warn", "fail", "unknown"]
Severity = Literal["blocks", "slows", "risks"]
"""What comes of it when it is not ok: nothing is served, everything is slower, or it may end."""

ORDER: dict[Status, int] = {"fail": 0, "warn": 1, "unknown": 2, "ok": 3}
"""Problems first, then what could not be seen."""


class NotSeen(Exception):
    """Something that a check needs could not be seen; the text says what was tried."""


@dataclass(frozen=True)
class Verdict:
    """One check's answer.

    Attributes:
        found: what is there, in words and figures.
        cause, fix: instead of the check's own, where the finding knows better.
    """

    status: Status
    found: str
    cause: str = ""
    fix: str = ""


def ok(found: str) -> Verdict:
    """All is as it should be."""
    return Verdict("ok", found)


def warn(found: str, *, cause: str = "", fix: str = "") -> Verdict:
    """It works, but it is at risk or not as fast as it could be."""
    return Verdict("warn", found, cause, fix)


def fail(found: str, *, cause: str = "", fix: str = "") -> Verdict:
    """It does not work, or far from how it should."""
    return Verdict("fail", found, cause, fix)


def unknown(tried: str) -> Verdict:
    """It could not be seen, which is not the same as being fine."""
    return Verdict("unknown", tried)


@dataclass(frozen=True)
class Finding:
    """A verdict with all that belongs to it.

    Attributes:
        id: `area.what`, e.g. `link.twins-one-subnet`.
        node: its name, or the names of those that were compared, joined by `+`.
        found: what is there.
        title: what the check makes sure of.
        looked_at: where it looked.
        severity: what comes of it.
        cause, fix: why, and a command or a deed; empty when all is well.
    """

    id: str
    node: str
    status: Status
    found: str
    title: str
    looked_at: str
    severity: Severity
    cause: str = ""
    fix: str = ""

    @property
    def area(self) -> str:
        return self.id.partition(".")[0]

    @property
    def order(self) -> tuple[int, str, str]:
        """Sorts problems to the front."""
        return ORDER[self.status], self.id, self.node

    def document(self) -> dict[str, Any]:
        """As in `doctor --json`."""
        return {
            "id": self.id,
            "node": self.node,
            "status": self.status,
            "found": self.found,
            "cause": self.cause,
            "fix": self.fix,
            "title": self.title,
            "looked_at": self.looked_at,
            "severity": self.severity,
        }
