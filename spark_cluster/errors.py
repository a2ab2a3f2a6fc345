"""Every error a user can meet: what happened, where, what was expected, and what to do.

Each carries the exit status of the command line (0 fine, 1 failed, 2 usage or invalid file,
3 unreachable, 4 refused by the plan, 5 verification failed, 130 interrupted).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator


class SparkClusterError(Exception):
    """Base of all errors shown to a user without a traceback.

    Args:
        message: what happened, in one line that names the thing.
        where: file and line, node, or resource; empty when the message says it.
        hint: what to do next; empty when there is nothing to add.

    Attributes:
        told: whether a run has told it of a node.
    """

    exit_code = 1
    told = False

    def __init__(self, message: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.where = where
        self.hint = hint

    def to_dict(self) -> dict[str, str]:
        """Return it as `--json` prints it."""
        return {"message": self.message, "where": self.where, "hint": self.hint}

    def __str__(self) -> str:
        text = f"{self.where}: {self.message}" if self.where else self.message
        return f"{text}\n  {self.hint}" if self.hint else text


def worst(errors: Iterable[SparkClusterError]) -> int:
    """Return the highest exit status of errors; 0 without one."""
    return max((error.exit_code for error in errors), default=0)


def install_extra(name: str) -> str:
    """Return the hint for a library of an extra (see pyproject.toml) that is not installed."""
    return f"install the extra `{name}`: pipx install --force '.[{name}]' in a checkout"


INSTALL_LAB = (
    "install the lab, in a checkout: pipx inject spark-cluster ./packages/spark-cluster-lab"
)
"""What to do where the distribution spark-cluster-lab, the extra `lab`, is missing."""


@contextlib.contextmanager
def naming(
    error: type[SparkClusterError], what: str, *, where: str = "", hint: str = ""
) -> Iterator[None]:
    """Have an OSError of the block end it as an error that says `WHAT: the system's reason`.

    Args:
        what: could not be done, such as `the plot cannot be written`.

    Raises:
        SparkClusterError: of the kind `error`.
    """
    try:
        yield
    except OSError as found:
        raise error(f"{what}: {found.strerror or found}", where=where, hint=hint) from None


class Failed(SparkClusterError):
    """A node, a resource or a stage of the run failed."""


class UsageError(SparkClusterError):
    """The command line cannot be carried out as given."""

    exit_code = 2


class InvalidFile(SparkClusterError):
    """A file that the user wrote is wrong; `where` is `file:line`."""

    exit_code = 2


class Unreachable(SparkClusterError):
    """A node could not be reached or its connection was lost."""

    exit_code = 3


class NotBack(Unreachable):
    """A node was rebooted and did not come back in time."""


class Refused(SparkClusterError):
    """The plan says that this cannot work (or is unsafe) on these nodes."""

    exit_code = 4


class DoesNotFit(Refused):
    """The plan says that this server cannot work on these nodes; another one may."""


class VerificationFailed(SparkClusterError):
    """Everything is in place, but it does not work as it should."""

    exit_code = 5


class Interrupted(SparkClusterError):
    """The user (or the system, with SIGTERM) ended the run; 130, as shells say it of Ctrl-C."""

    exit_code = 130
