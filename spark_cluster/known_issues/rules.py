"""The rules that need more than a comparison, and `lint` with all of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from typing import TYPE_CHECKING

from spark_cluster.known_issues import launch_matching
from spark_cluster.known_issues.case import Case
from spark_cluster.known_issues.entries import Issue, catalogue
from spark_cluster.known_issues.match import Edit, KnownIssueMatch, Severity, ordered

if TYPE_CHECKING:
    from spark_cluster.config.launch import Launch
    from spark_cluster.facts.model import Facts
    from spark_cluster.models.shape import Geometry

MODULES = (
    "rules_container",
    "rules_flags",
    "rules_kind",
    "rules_memory",
    "rules_model",
    "rules_pair",
)
"""Where rules are, next to this file."""

RuleResult = KnownIssueMatch | None


class RuleContext:
    """The input of a rule: its issue, the case, and a way to report what it found."""

    def __init__(self, issue: Issue, case: Case) -> None:
        self.issue = issue
        self.case = case

    def found(
        self,
        what: str,
        *,
        severity: Severity | None = None,
        edit: Edit | None = None,
        fix: str = "",
        cause: str = "",
    ) -> KnownIssueMatch:
        """Return a match; what is not given is the catalogue's."""
        return launch_matching.finding(
            self.issue, self.case, what, severity=severity, edit=edit, fix=fix, cause=cause
        )


Rule = Callable[[RuleContext, Case], RuleResult]
RULES: dict[str, Rule] = {}


def rule(id: str) -> Callable[[Rule], Rule]:
    """Register a function as the rule of an issue of the catalogue."""

    def made(function: Rule) -> Rule:
        if id in RULES:
            raise ValueError(f"rule {id} is defined twice")
        RULES[id] = function
        return function

    return made


@cache
def rules() -> dict[str, Rule]:
    """Return every rule by the id of its issue."""
    for name in MODULES:
        importlib.import_module(f"spark_cluster.known_issues.{name}")
    return RULES


def lint(
    launch: Launch, geometry: Geometry | None = None, facts: Sequence[Facts] = ()
) -> list[KnownIssueMatch]:
    """Return every known issue that a launch has, errors first.

    Args:
        geometry: the model's shape, when it is known; some rules need it.
        facts: of the nodes, when they can be reached; some figures become certain with them.
    """
    return ordered(list(_each(Case(launch, geometry, tuple(facts)), catalogue().values())))


def _each(case: Case, issues: Iterable[Issue]) -> Iterator[KnownIssueMatch]:
    for issue in issues:
        if case.launch.engine not in issue.engines:
            continue
        found = _by_rule(issue, case) if issue.rule else launch_matching.of_plan(issue, case)
        if found is not None:
            yield found


def _by_rule(issue: Issue, case: Case) -> RuleResult:
    severity = launch_matching.severity_for(issue, case)
    if severity is None:
        return None
    about = issue if severity == issue.severity else issue.model_copy(update={"severity": severity})
    return rules()[issue.id](RuleContext(about, case), case)
