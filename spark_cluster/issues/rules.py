"""The rules that need more than a comparison, and the search of a plan with all of them."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from functools import cache

from spark_cluster.issues import matching
from spark_cluster.issues.case import Case
from spark_cluster.issues.entries import Issue, catalogue
from spark_cluster.issues.finding import Edit, Finding, Severity, ordered

MODULES = ("rules_container", "rules_flags", "rules_memory", "rules_model", "rules_pair")
"""Where rules are, beside this file."""

Made = Finding | None


class About:
    """What a rule gets: the case, and a way to say what it found of its own issue."""

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
    ) -> Finding:
        """A finding; what is not given is the catalogue's."""
        return matching.finding(
            self.issue, self.case, what, severity=severity, edit=edit, fix=fix, cause=cause
        )


Rule = Callable[[About, Case], Made]
RULES: dict[str, Rule] = {}


def rule(id: str) -> Callable[[Rule], Rule]:
    """Makes a function the rule of an issue of the catalogue."""

    def made(function: Rule) -> Rule:
        if id in RULES:
            raise ValueError(f"there are two rules for {id}")
        RULES[id] = function
        return function

    return made


@cache
def rules() -> dict[str, Rule]:
    """Every rule by the id of its issue."""
    for name in MODULES:
        importlib.import_module(f"spark_cluster.issues.{name}")
    return RULES


def lint(case: Case) -> list[Finding]:
    """Every known issue that a launch has, errors first."""
    return ordered(list(_each(case, catalogue().values())))


def _each(case: Case, issues: Iterable[Issue]) -> Iterator[Finding]:
    for issue in issues:
        found = _by_rule(issue, case) if issue.rule else matching.of_plan(issue, case)
        if found is not None:
            yield found


def _by_rule(issue: Issue, case: Case) -> Made:
    severity = matching.severity_for(issue, case)
    if severity is None:
        return None
    about = issue if severity == issue.severity else issue.model_copy(update={"severity": severity})
    return rules()[issue.id](About(about, case), case)
