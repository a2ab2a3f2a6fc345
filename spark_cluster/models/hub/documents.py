"""What is asked of a source of a model's documents, and how it says that it has none."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, cast

from spark_cluster.config.suggest import did_you_mean
from spark_cluster.errors import UsageError
from spark_cluster.node.store import hub_problems

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
        blobs: name of a file to the hash of its content: SHA-256 of large files, git's SHA-1 of
            others; without those of which the hub tells none.
    """

    commit: str
    names: tuple[str, ...]
    blobs: Mapping[str, str] = field(default_factory=dict)


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

    def beginnings(
        self, repository: str, commit: str, names: Sequence[str], most: int
    ) -> list[bytes]:
        """The first bytes of several files, `most` of each at most.

        Raises:
            HubError: one of them cannot be read.
        """


def is_repository(name: str) -> bool:
    """Return whether a name can be that of a repository: `organisation/model`."""
    return bool(_REPOSITORY.fullmatch(name)) and ".." not in name and "--" not in name


def is_commit(revision: str) -> bool:
    """Return whether a revision is a commit, which never changes."""
    return bool(_COMMIT.fullmatch(revision))


def missing(repository: str, known: Sequence[str]) -> HubError:
    """Say that there is no such repository, and what may have been meant."""
    return _error(hub_problems.missing(repository, did_you_mean(repository, known)))


def gated(repository: str) -> HubError:
    """Say that the authors must give access first."""
    return _error(hub_problems.gated(repository))


def no_revision(repository: str, revision: str) -> HubError:
    """Say that the repository has no such branch, tag or commit."""
    return _error(hub_problems.no_revision(repository, revision))


def busy(retry_after: str) -> HubError:
    """Say that too many requests came from here, and what the header of that name says."""
    return _error(hub_problems.busy(hub_problems.seconds_of(retry_after)))


def unreachable(reason: str) -> HubError:
    """Say that no answer came."""
    return _error(hub_problems.unreachable(reason))


def wrong_answer(what: str) -> HubError:
    """Say that an answer came that cannot be used."""
    return _error(hub_problems.wrong_answer(what))


def _error(problem: hub_problems.HubProblem) -> HubError:
    """The laptop's error with the words that nodes have, too."""
    return HubError(cast("HubProblem", problem.kind), problem.message, hint=problem.hint)


def listing_of(text: bytes, repository: str) -> Listing:
    """The listing in the hub's description of a revision.

    Raises:
        HubError: it is none.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise wrong_answer(f"the description of {repository} is not JSON") from error
    document = document if isinstance(document, dict) else {}
    commit, files = document.get("sha"), document.get("siblings")
    if not isinstance(commit, str) or not is_commit(commit) or not isinstance(files, list):
        raise wrong_answer(f"the description of {repository} lacks its commit or its files")
    told = [f for f in files[:MOST_NAMES] if isinstance(f, dict)]
    named = {f["rfilename"]: f for f in told if isinstance(f.get("rfilename"), str)}
    hashes = {name: _hash_of(file) for name, file in named.items()}
    return Listing(commit, tuple(named), {name: one for name, one in hashes.items() if one})


def _hash_of(file: Mapping[str, Any]) -> str:
    """Return the hash of a file's content; of a large one `blobId` is that of its pointer."""
    large = file.get("lfs")
    found = large.get("sha256") if isinstance(large, dict) else file.get("blobId")
    return found if isinstance(found, str) else ""
