"""The explanation of the logs of one launch, as the command line and `--json` show it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from spark_cluster.known_issues.next_steps import steps_for
from spark_cluster.known_issues.seen import Seen, Verdict, cause_of, verdict_on


@dataclass
class Explanation:
    """The result for one or more logs.

    Attributes:
        engine: whose logs they are, `vLLM` or `SGLang`; empty when no line says so.
        problems: the earliest real error first, then other errors by time, then warnings, then
            what only follows, then notes, then what the server got over.
        facts: what a healthy start tells.
        missing: what it would have told besides.
        logs: name, bytes and lines of each.
        last: the last lines of the logs in which nothing was recognised, by name.
        unfinished: the server began to start and never took requests.
    """

    engine: str = ""
    problems: list[Seen] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    logs: list[tuple[str, int, int]] = field(default_factory=list)
    last: dict[str, list[str]] = field(default_factory=dict)
    unfinished: bool = False

    @property
    def cause(self) -> Seen | None:
        """The root as far as these logs tell; an effect where the cause is in none of them."""
        return cause_of(self.problems)

    @property
    def verdict(self) -> Verdict:
        """What can be said of the launch."""
        warned = any(p.finding.severity == "warning" and not p.overcome for p in self.problems)
        unfinished = self.unfinished and "end" not in self.facts
        return verdict_on(self.cause, unfinished=unfinished, warned=warned)

    @property
    def recognised(self) -> bool:
        """False where no line of these logs says anything of an engine."""
        return bool(self.engine or self.facts or self.problems)

    @property
    def next_steps(self) -> list[str]:
        """Where to look next; nothing where the cause is certain."""
        return steps_for(self.verdict, self.problems, self.missing, len(self.logs))

    def to_dict(self) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        cause = self.cause
        return {
            "engine": self.engine,
            "verdict": self.verdict,
            "cause": cause.to_dict() if cause else None,
            "issues": [problem.to_dict() for problem in self.problems],
            "facts": self.facts,
            "missing": self.missing,
            "last": self.last,
            "next": self.next_steps,
            "logs": [{"name": n, "bytes": b, "lines": count} for n, b, count in self.logs],
        }
