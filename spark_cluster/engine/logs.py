"""The logs of the engine's containers, the earliest real error in them, and what is known of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_cluster.engine import runtime
from spark_cluster.errors import Failed
from spark_cluster.logs import lines
from spark_cluster.node import unit_state
from spark_cluster.runner.session import Session

if TYPE_CHECKING:
    from spark_cluster.known_issues.match import KnownIssueMatch


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
        from spark_cluster.known_issues.log_matching import known_for

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
    return unit_state.stamped(done.stdout + done.stderr) if done.status == 0 else ""


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
    found = [(where, error) for where, log in logs.items() for error in lines.errors_of(log)]
    causes = [(where, error) for where, error in found if not lines.is_echo(error.text)] or found
    if not causes:
        return None
    where, error = min(causes, key=lambda one: one[1].line.at)
    return Fault(where, error.text, error.line.stamp, error.before)


def _message(raw: str) -> str:
    """A line with vLLM's own prefix, which tells who speaks, but without Docker's stamp."""
    clean = lines.ANSI.sub("", raw).strip()
    stamp = lines.read(clean).stamp
    return clean.partition(stamp)[2].strip() if stamp else clean
