"""What is asked of a source of a model's documents, and how it says that it has none."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from spark_cluster.config.suggest import did_you_mean
from spark_cluster.errors import UsageError

_REPOSITORY = re.compile(r"[A-Za-z0-9_][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}")
_COMMIT = re.compile(r"[0-9a-f]{40}")
MOST_NAMES = 100_000

HubProblem = Literal["missing", "gated", "revision", "file", "busy", "unreachable", "server"]


class HubError(UsageError):
    """The hub does not give what is asked for.

    Attributes:
        kind: `missing` (or private), `gated`, `revision` or `file` (not in the repository), `busy`
            (too many requests), `unreachable`, `server` (it answers, but not as it should).
    """

    def __init__(self, kind: HubProblem, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.kind = kind


@dataclass(frozen=True)
class Listing:
    """A revision of a repository.

    Attributes:
        commit: of 40 hexadecimal digits.
        names: of its files.
    """

    commit: str
    names: tuple[str, ...]


class DocumentSource(Protocol):
    """Where a model's documents can be read: the hub itself, or a node that reaches it."""

    def listing(self, repository: str, revision: str) -> Listing:
        """The files of a revision.

        Raises:
            HubError: there is no such repository, or it cannot be asked.
        """

    def read(
        self, repository: str, commit: str, name: str, *, begin: int = 0, most: int
    ) -> tuple[bytes, bool]:
        """Bytes of a file from a place on, `most` at most, and whether the file ends there.

        Raises:
            HubError: it cannot be read.
        """


def is_repository(name: str) -> bool:
    """Return whether a name can be that of a repository: `organisation/model`."""
    return bool(_REPOSITORY.fullmatch(name)) and ".." not in name and "--" not in name


def is_commit(revision: str) -> bool:
    """Return whether a revision is a commit, which never changes."""
    return bool(_COMMIT.fullmatch(revision))


def missing(repository: str, known: Sequence[str]) -> HubError:
    """Say that there is no such repository, and what may have been meant."""
    return HubError(
        "missing",
        f"the hub has no model {repository!r} that is visible from here",
        hint=f"check the spelling ({did_you_mean(repository, known)}); for a private model set "
        "HF_TOKEN to a token that may read it",
    )


def gated(repository: str) -> HubError:
    """Say that the authors must give access first."""
    return HubError(
        "gated",
        f"the model {repository!r} is gated: its authors give access on request",
        hint=f"accept its conditions at https://huggingface.co/{repository} and set HF_TOKEN to a "
        "token of that account; or give a folder with its config.json",
    )


def no_revision(repository: str, revision: str) -> HubError:
    """Say that the repository has no such branch, tag or commit."""
    return HubError(
        "revision",
        f"the model {repository!r} has no revision {revision!r} on the hub",
        hint="give a branch, tag or commit that the model's page lists under 'Files'",
    )


def busy(wait_s: str) -> HubError:
    """Say that too many requests came from here."""
    wait = f"wait {wait_s} s" if wait_s else "wait some minutes"
    return HubError(
        "busy",
        "the hub refuses more requests from this address for now (429)",
        hint=f"{wait}, or set HF_TOKEN, which allows more; --offline uses what is known here",
    )


def unreachable(reason: str) -> HubError:
    """Say that no answer came."""
    return HubError(
        "unreachable",
        f"the hub cannot be reached: {reason}",
        hint="check the network and HTTPS_PROXY; --offline uses what is known here, and a folder "
        "with the model's config.json works without the hub",
    )


def wrong_answer(what: str) -> HubError:
    """Say that an answer came that cannot be used."""
    return HubError(
        "server",
        f"the hub's answer cannot be used: {what}",
        hint="try again later; --offline uses what is known here",
    )
