"""The logs of the engine's containers, the earliest real error in them, and what is known of it.

The beginning of a log tells whether a start is what the recipe expects.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from spark_cluster.config.recipe_schema import Readiness
from spark_cluster.config.topology import Node
from spark_cluster.engine import runtime
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.errors import Failed, VerificationFailed
from spark_cluster.issues import log_lines
from spark_cluster.issues.match import KnownIssueMatch
from spark_cluster.node import containers
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Session


@dataclass(frozen=True)
class Fault:
    """An error line of one container; `at` is Docker's time stamp, `before` its traceback."""

    where: str
    text: str
    at: str = ""
    before: str = field(default="", repr=False, compare=False)

    @property
    def known(self) -> KnownIssueMatch | None:
        """The known issue that explains it; None when none does."""
        from spark_cluster.issues.log_matching import known_for

        return known_for(self.text, self.before)

    def advice(self, otherwise: str) -> str:
        """Return what to do about it, as an error's hint: the known issue and its fix.

        Args:
            otherwise: the hint when nothing is known of it; it stands behind the fix too.
        """
        known = self.known
        if known is None:
            return otherwise
        return f"{known.title} ({known.id}): {known.cause}\n  {known.fix}\n  {otherwise}"


def advice(fault: Fault | None, otherwise: str) -> str:
    """`Fault.advice`, or `otherwise` where there is no fault."""
    return otherwise if fault is None else fault.advice(otherwise)


@contextmanager
def explained() -> Iterator[None]:
    """Add to a failure what is known of it: a program that ends at once has its log in the message.

    Raises:
        Failed: as it was raised, with a longer hint.
    """
    try:
        yield
    except Failed as error:
        lines_of_it = (Fault(error.where, line.strip()) for line in error.message.splitlines())
        fault = next((one for one in lines_of_it if one.known is not None), None)
        error.hint = advice(fault, error.hint)
        raise


def read(session: Session, container: str, *, lines: int = 400) -> str:
    """The end of a container's log with Docker's time stamps; empty when there is none."""
    try:
        done = session.run(runtime.log(container, lines))
    except Failed:  # an idle node need not even have Docker
        return ""
    return containers.stamped(done.stdout + done.stderr) if done.status == 0 else ""


def last_line(log: str) -> str:
    """The last line that says something, without colours and prefixes of Docker and Ray."""
    for raw in reversed(log.splitlines()):
        text = _message(raw)
        if text:
            return text
    return ""


def first_error(logs: Mapping[str, str]) -> Fault | None:
    """The earliest error over all logs that does not merely follow from another.

    Args:
        logs: where (`spark1 spark-vllm`) to its text, with time stamps or without.
    """
    found = [(where, error) for where, log in logs.items() for error in log_lines.errors_of(log)]
    causes = [
        (where, error) for where, error in found if not log_lines.is_echo(error.text)
    ] or found
    if not causes:
        return None
    where, error = min(causes, key=lambda one: one[1].line.at)
    return Fault(where, error.text, error.line.stamp, error.before)


def _message(raw: str) -> str:
    """A line with vLLM's own prefix, which tells who speaks, but without Docker's stamp."""
    clean = log_lines.ANSI.sub("", raw).strip()
    stamp = log_lines.read(clean).stamp
    return clean.partition(stamp)[2].strip() if stamp else clean


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
    texts = play.together(*[partial(read_beginning, *one) for one in asked])
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


def read_beginning(session: Session, container: str, size: int = BEGINNING) -> str:
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
