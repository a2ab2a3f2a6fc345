"""Patterns that select nodes: `spark1`, `worker`, `spark*`, `head,spark3`, `all:!spark2`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

from spark_cluster.config.suggest import did_you_mean
from spark_cluster.errors import UsageError

GRAMMAR = "NAME, GROUP or GLOB, joined by ',' or ':'; !X leaves X out, &X keeps only what is in X"


def select(pattern: str, nodes: Sequence[str], groups: Mapping[str, frozenset[str]]) -> list[str]:
    """The names of the selected nodes, in the order of the inventory.

    As in Ansible, the order of the terms does not matter: first what is named, then only what is
    in every `&` term, then without every `!` term. A pattern that only takes away starts from all.

    Args:
        pattern: terms joined by commas or colons.
        nodes: the names of all nodes.
        groups: the members of each group.

    Raises:
        UsageError: a term names nothing, or no node is left.
    """
    terms = [term.strip() for term in re.split(r"[,:]", pattern)]
    terms = [term for term in terms if term]
    if not terms:
        raise UsageError("the node pattern is empty", hint=GRAMMAR)
    named = [term for term in terms if term[0] not in "!&"]
    chosen = set(nodes) if not named else set[str]()
    for term in named:
        chosen |= _members(term, nodes, groups, pattern)
    for term in terms:
        if term[0] == "&":
            chosen &= _members(term[1:], nodes, groups, pattern)
    for term in terms:
        if term[0] == "!":
            chosen -= _members(term[1:], nodes, groups, pattern)
    if not chosen:
        raise UsageError(f"the node pattern '{pattern}' selects no node", hint=GRAMMAR)
    return [name for name in nodes if name in chosen]


def _members(
    term: str, nodes: Sequence[str], groups: Mapping[str, frozenset[str]], pattern: str
) -> set[str]:
    term = term.strip()
    if term in groups:
        return set(groups[term])
    found = {name for name in nodes if fnmatchcase(name, term)}
    for group, members in groups.items():
        if fnmatchcase(group, term):
            found |= members
    # Also in a `!` term: a typo there would otherwise run on the node that was to be spared.
    if not found:
        raise UsageError(
            f"the node pattern '{pattern}' names '{term}', which is not a node or group",
            hint=did_you_mean(term, [*nodes, *groups], "known"),
        )
    return found
