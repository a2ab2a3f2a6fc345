"""A check: a pure function to a verdict, which the catalogue of known issues explains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

from spark_cluster.doctor.observations import (
    CheckResult,
    NodeSource,
    NotSeen,
    Observations,
    Probed,
    Verdict,
    labels,
    ok,
    unknown,
)
from spark_cluster.issues.entries import Effect, Issue, catalogue, fill, for_check

S = TypeVar("S")
Look = Callable[[S], Verdict]
Pair = Sequence[Observations]

ALONE = ok("one node alone needs no link")


_NOT_UNDERSTOOD = (
    ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError,
)  # fmt: skip
"""What a check raises over a tool's words in a form never seen."""


@dataclass(frozen=True)
class Check(Generic[S]):
    """A check of one node, of several nodes compared, or of what a probe found.

    Attributes:
        id: `area.what`.
        title: what it makes sure of.
        look: from what was seen to the verdict; raises NotSeen where it cannot see.
        needs: names of sources; without any one of them the verdict is `unknown`.
        effect: what comes of it when it is not ok.
        link: a node without peers needs no such check.
        spark: only a Spark has what it looks at; where it is missing on a node with another GPU,
            all is well.
        sources: what it wants to be looked at beyond what every node is asked, by name.
    """

    id: str
    title: str
    look: Look[S]
    needs: tuple[str, ...]
    effect: Effect
    link: bool = False
    sources: Mapping[str, NodeSource] = field(default_factory=dict)
    spark: bool = False

    @property
    def area(self) -> str:
        return self.id.partition(".")[0]

    def result(self, seen: S, node: str, *, alone: bool = False) -> CheckResult:
        """Return the verdict on what was seen, explained."""
        verdict = ALONE if self.link and alone else self._verdict(seen)
        return explained(
            CheckResult(
                id=self.id,
                node=node,
                status=verdict.status,
                found=verdict.found,
                title=self.title,
                looked_at=self.looked_at,
                effect=self.effect,
            ),
            verdict,
        )

    @property
    def looked_at(self) -> str:
        """The sources as a person would name them."""
        known = {**{name: own.label for name, own in self.sources.items()}, **labels()}
        return ", ".join(known.get(need, need) for need in self.needs)

    def _verdict(self, seen: S) -> Verdict:
        try:
            return self.look(seen)
        except NotSeen as why:
            others = _other_gpus(seen) if self.spark else ""
            return (
                ok(f"{others}: not a Spark, so there is nothing to check")
                if others
                else unknown(str(why))
            )
        except _NOT_UNDERSTOOD as fault:
            return unknown(f"{self.looked_at}: not understood ({type(fault).__name__}: {fault})")


def _other_gpus(seen: object) -> str:
    """Return the names of the nodes' GPUs; empty where one may be a Spark's."""
    nodes = [one for one in _listed(seen) if isinstance(one, Observations)]
    names = [one.other_gpu for one in nodes]
    return ", ".join(dict.fromkeys(names)) if all(names) else ""


def _listed(seen: object) -> Sequence[object]:
    return seen if isinstance(seen, Sequence) else (seen,)


def explained(result: CheckResult, verdict: Verdict) -> CheckResult:
    """Return a result with the known issue behind its verdict: id, cause and fix."""
    issue = _issue_of(result.id, verdict)
    if issue is None:
        return result
    values = {"NODE": result.node.replace("+", ","), **verdict.fill}
    cause, fix = fill(issue.cause, values), fill(issue.fix, values)
    return replace(result, issue=issue.id, cause=cause, fix=fix)


def _issue_of(check: str, verdict: Verdict) -> Issue | None:
    """Return the issue that the verdict names, else the only one of this check."""
    if verdict.status not in ("warn", "fail"):
        return None
    if verdict.issue:
        return catalogue().get(verdict.issue)
    known = for_check(check)
    return known[0] if len(known) == 1 else None


NodeCheck = Check[Observations]
PairCheck = Check[Pair]
ProbeCheck = Check[Probed]


def check(
    id: str,
    *,
    needs: tuple[str, ...],
    effect: Effect,
    title: str = "",
    link: bool = False,
    sources: Mapping[str, NodeSource] | None = None,
    spark: bool = False,
) -> Callable[[Look[S]], Check[S]]:
    """Turn a function into a check; see `Check`. The function's docstring is its title, where none
    is given.
    """

    def made(look: Look[S]) -> Check[S]:
        name = title or look.__doc__ or id
        return Check(id, name, look, needs, effect, link, sources or {}, spark)

    return made
