"""What is asked of a source of a model's documents, and how it says that it has none."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from spark_cluster.errors import UsageError
from spark_cluster.node.store import hub_problems
from spark_cluster.node.store.hub_problems import HubProblem
from spark_cluster.node.store.manifest import is_commit

_REPOSITORY = re.compile(r"[A-Za-z0-9_][\w.-]{0,95}/[A-Za-z0-9_][\w.-]{0,95}")
MOST_NAMES = 100_000


class HubError(UsageError):
    """The hub does not give what is asked for.

    Attributes:
        kind: see `HubProblem`.
    """

    def __init__(self, problem: HubProblem) -> None:
        super().__init__(problem.message, hint=problem.hint)
        self.kind = problem.kind


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


def wrong_answer(what: str) -> HubError:
    """Say that an answer came that cannot be used."""
    return HubError(hub_problems.wrong_answer(what))


def unreachable(reason: str) -> HubError:
    """Say that no answer came."""
    return HubError(hub_problems.unreachable(reason))


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
