"""The engine's log of its start, and whether it is what the recipe expects."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from spark_cluster.engine import runtime
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.errors import Failed, VerificationFailed
from spark_cluster.runner.play import Play

if TYPE_CHECKING:
    from spark_cluster.config.recipe_schema import Readiness
    from spark_cluster.runner.session import Session
    from spark_cluster.topology import Node

BEGINNING = 4_000_000
"""Bytes of each log that are looked at; a start tells less than a tenth, requests much more."""

_ANSI = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Unmet:
    """A line that a log should contain and does not, or contains and should not.

    Attributes:
        pattern: the regular expression.
        line: the forbidden line; for an expected one, a line that is about the same thing.
    """

    pattern: str
    forbidden: bool
    line: str = ""


def must_fit(play: Play, nodes: Sequence[Node], wanted: Readiness, server: str = SERVER) -> None:
    """Look for the recipe's assertions in the logs of all ranks; a line of any of them counts.

    Args:
        server: name of the program that serves.

    Raises:
        VerificationFailed: a line is missing, or there is one that must not be.
    """
    if not (wanted.log_expect or wanted.log_forbid):
        return
    asked = [(play.session(node), name) for node in nodes for name in (server, RAY)]
    texts = play.together(*[partial(read, *one) for one in asked])
    missed = unmet("\n".join(texts), wanted.log_expect, wanted.log_forbid)
    if not missed:
        return
    first, *others = missed
    more = f" (and {len(others)} more)" if others else ""
    message = f"the engine's log does not contain {first.pattern!r}{more}"
    if first.forbidden:
        message = f"the engine's log contains a forbidden line{more}: {first.line}"
    elif first.line:
        message += f"; it says: {first.line}"
    raise VerificationFailed(
        message,
        where=play.head.name,
        hint="another kernel or transport is in use than the recipe was tested with, or this image "
        "words it otherwise: readiness.log_expect and log_forbid define what is expected",
    )


def read(session: Session, container: str, size: int = BEGINNING) -> str:
    """The first `size` bytes of a container's log, without colours; empty when there is none."""
    try:
        done = session.run(runtime.beginning(container, size), timeout=60)
    except Failed:  # an idle node need not even have Docker
        return ""
    return _ANSI.sub("", done.stdout)


def unmet(log: str, expect: Sequence[str], forbid: Sequence[str]) -> list[Unmet]:
    """The assertions that a log does not meet."""
    found = []
    for pattern in expect:
        if not re.search(pattern, log):
            found.append(Unmet(pattern, forbidden=False, line=_about(pattern, log)))
    for pattern in forbid:
        match = re.search(pattern, log)
        if match:
            found.append(Unmet(pattern, forbidden=True, line=_line_at(log, match.start())))
    return found


def _about(pattern: str, log: str) -> str:
    """The first line that has the longest plain text of a pattern."""
    plain = max(re.split(r"\\.|[^\w ]", pattern), key=len)
    at = log.find(plain) if len(plain.strip()) >= 6 else -1
    return _line_at(log, at) if at >= 0 else ""


def _line_at(log: str, at: int) -> str:
    end = log.find("\n", at)
    return log[log.rfind("\n", 0, at) + 1 : end if end >= 0 else len(log)].strip()
