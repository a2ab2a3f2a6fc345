"""What a check is: a pure function with all that is to be said about it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from spark_cluster.doctor.finding import Finding, NotSeen, Severity, Verdict, ok, unknown
from spark_cluster.doctor.observations import Observations
from spark_cluster.doctor.probed import Probed
from spark_cluster.doctor.question import Context, sources

S = TypeVar("S")
Look = Callable[[S], Verdict]
Pair = Sequence[Observations]

ALONE = ok("one node alone needs no link")


@dataclass(frozen=True)
class Check(Generic[S]):
    """One check of one node, of several nodes beside each other, or of what a probe found.

    Attributes:
        id: `area.what`.
        title: what it makes sure of.
        look: from what was seen to the verdict; raises NotSeen where it cannot see.
        needs: names of sources; without any one of them the verdict is `unknown`.
        severity: what comes of it when it is not ok.
        cause, fix: of the usual finding; `{node}` is the node's name.
        rows: numbers of `table.SYMPTOMS` that it covers.
        link: a node without peers needs no such check.
    """

    id: str
    title: str
    look: Look[S]
    needs: tuple[str, ...]
    severity: Severity
    cause: str
    fix: str
    rows: tuple[int, ...] = ()
    link: bool = False

    @property
    def area(self) -> str:
        return self.id.partition(".")[0]

    def finding(self, seen: S, node: str, *, alone: bool = False) -> Finding:
        """The verdict on what was seen, with all that belongs to it."""
        verdict = ALONE if self.link and alone else self._verdict(seen)
        wrong = verdict.status in ("warn", "fail")
        return Finding(
            id=self.id,
            node=node,
            status=verdict.status,
            found=verdict.found,
            title=self.title,
            looked_at=self.looked_at,
            severity=self.severity,
            cause=(verdict.cause or self.cause) if wrong else "",
            fix=(verdict.fix or self.fix).replace("{node}", node) if wrong else "",
        )

    @property
    def looked_at(self) -> str:
        """The sources as a person would name them."""
        known = sources(Context())
        return ", ".join(known[need].label if need in known else need for need in self.needs)

    def _verdict(self, seen: S) -> Verdict:
        try:
            return self.look(seen)
        except NotSeen as why:
            return unknown(str(why))
        except (ValueError, LookupError, TypeError) as fault:  # a tool's words in a form never seen
            return unknown(f"{self.looked_at}: not understood ({type(fault).__name__}: {fault})")


NodeCheck = Check[Observations]
PairCheck = Check[Pair]
ProbeCheck = Check[Probed]


def check(
    id: str,
    *,
    title: str,
    needs: tuple[str, ...],
    severity: Severity,
    cause: str,
    fix: str,
    rows: tuple[int, ...] = (),
    link: bool = False,
) -> Callable[[Look[S]], Check[S]]:
    """Makes a check of a function; see `Check`."""

    def made(look: Look[S]) -> Check[S]:
        return Check(id, title, look, needs, severity, cause, fix, rows, link)

    return made
