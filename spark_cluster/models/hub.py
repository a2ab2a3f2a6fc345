"""Sources of a model's documents: what is asked of one, and the hub as its library reaches it."""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import quote

from spark_cluster.config.yamlfile import did_you_mean
from spark_cluster.errors import UsageError
from spark_cluster.node.store import hub_problems, manifest
from spark_cluster.node.store.hub_problems import HubProblem
from spark_cluster.node.store.manifest import is_commit

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


class DocumentSource(ABC):
    """Where a model's documents can be read: the hub itself, a node that reaches it, a folder."""

    @abstractmethod
    def listing(self, repository: str, revision: str) -> Listing:
        """The files of a revision.

        Raises:
            HubError: there is no such repository, or it cannot be asked.
        """

    @abstractmethod
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
        return [self.read(repository, commit, name, most=most)[0] for name in names]


def is_repository(name: str) -> bool:
    """Return whether a name can be that of a repository: `organisation/model`."""
    return "/" in name and manifest.is_repository(name)


def wrong_answer(what: str) -> HubError:
    """Say that an answer came that cannot be used."""
    return HubError(hub_problems.problem("server", what=what))


def unreachable(reason: str) -> HubError:
    """Say that no answer came."""
    return HubError(hub_problems.problem("unreachable", reason=reason))


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


# The hub, by whoever reaches it.

LARGEST_LISTING = 16 << 20
"""Bytes of the description of a repository."""


class HubRequest(NamedTuple):
    """What is asked of the hub.

    Attributes:
        path: below its address.
        begin: the first byte.
        most: bytes; 0 for all of a description.
    """

    path: str
    begin: int = 0
    most: int = 0

    @property
    def headers(self) -> dict[str, str]:
        """The range, where a part is asked for."""
        if not self.most:
            return {}
        return {"Range": f"bytes={self.begin}-{self.begin + self.most - 1}"}

    def answered(self, status: int, content_range: str, body: bytes) -> tuple[bytes, bool]:
        """Return what came of it, and whether it ends there.

        Raises:
            HubError: another part came.
        """
        if status == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return b"", True
        if self.begin and status == HTTPStatus.OK:
            raise wrong_answer("it does not give parts of files")
        most, total = self.most or LARGEST_LISTING, content_range.rpartition("/")[2]
        if len(body) <= most and status == HTTPStatus.PARTIAL_CONTENT and total.isdecimal():
            return body, int(total) <= self.begin + len(body)
        return body[:most], len(body) <= most


GIVEN = (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT, HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE)
"""Status of an answer that is no refusal."""


class HubDocuments(DocumentSource):
    """The hub as a source of documents."""

    @abstractmethod
    def _answers(
        self, repository: str, revision: str, asked: Sequence[HubRequest]
    ) -> list[tuple[bytes, bool]]:
        """Return what the hub answers, and whether it ends there.

        Raises:
            HubError: something is refused, or cannot be read.
        """

    def listing(self, repository: str, revision: str) -> Listing:
        path = f"/api/models/{repository}/revision/{quote(revision, safe='')}?blobs=true"
        ((text, ended),) = self._answers(repository, revision, [HubRequest(path)])
        if not ended:
            raise wrong_answer(f"the description of {repository} is too long")
        return listing_of(text, repository)

    def read(
        self, repository: str, commit: str, name: str, *, begin: int = 0, most: int
    ) -> tuple[bytes, bool]:
        path = _path(repository, commit, name)
        return self._answers(repository, commit, [HubRequest(path, begin, most)])[0]

    def beginnings(
        self, repository: str, commit: str, names: Sequence[str], most: int
    ) -> list[bytes]:
        asked = [HubRequest(_path(repository, commit, name), most=most) for name in names]
        return [body for body, _ended in self._answers(repository, commit, asked)]


def _path(repository: str, commit: str, name: str) -> str:
    return f"/{repository}/resolve/{commit}/{quote(name)}"


# The hub, asked from this machine with its own library: tokens, proxies and endpoint are its.

REQUEST_S = 10.0
"""Longest wait for the next bytes of an answer, seconds."""
TOTAL_S = 45.0
"""Longest that one document may take, seconds."""
ALL_S = 90.0
"""Longest that the headers of all files may take, seconds."""
AT_A_TIME = 8


class HubLibrary(HubDocuments):
    """The hub as `huggingface_hub` reaches it.

    Args:
        endpoint: of another hub than HF_ENDPOINT names.
        known: names of models, for suggestions.
    """

    def __init__(self, endpoint: str | None = None, known: tuple[str, ...] = ()) -> None:
        self._endpoint = endpoint
        self._known = known

    def _answers(
        self, repository: str, revision: str, asked: Sequence[HubRequest]
    ) -> list[tuple[bytes, bool]]:
        from concurrent.futures import ThreadPoolExecutor

        until = time.monotonic() + ALL_S

        def one(asked: HubRequest) -> tuple[bytes, bool]:
            if time.monotonic() > until:
                raise wrong_answer(f"the headers of {repository} took more than {ALL_S:g} s")
            return self._get(asked, repository, revision)

        if len(asked) == 1:  # Ctrl-C need not wait for it, as it does for a pool
            return [one(asked[0])]
        with ThreadPoolExecutor(min(AT_A_TIME, len(asked))) as pool:
            return list(pool.map(one, asked))

    def _get(self, asked: HubRequest, repository: str, revision: str) -> tuple[bytes, bool]:
        from huggingface_hub import constants, get_session
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        url = (self._endpoint or constants.ENDPOINT).rstrip("/") + asked.path
        headers = dict(build_hf_headers(library_name="spark-cluster")) | asked.headers
        with (
            self._explained(repository, revision),
            get_session().stream("GET", url, headers=headers, timeout=REQUEST_S) as response,
        ):
            status = response.status_code
            if status not in GIVEN:
                problem = hub_problems.of_answer(status, response.headers, repository, revision)
                raise self._refused(problem, repository)
            body = _bounded(response.iter_bytes(), asked.most or LARGEST_LISTING)
            return asked.answered(status, response.headers.get("Content-Range", ""), body)

    @contextmanager
    def _explained(self, repository: str, revision: str) -> Iterator[None]:
        """Turn what the library raises into what the user can do."""
        try:
            yield
        except HubError:
            raise
        except Exception as error:
            problem = hub_problems.of_library(error, repository, revision)
            timed_out = "Timeout" in type(error).__name__
            if problem is None and not isinstance(error, OSError):
                raise
            if problem is None or timed_out:
                words = f"no answer within {REQUEST_S:g} s" if timed_out else ""
                raise unreachable(words or hub_problems.first_line(error)) from error
            raise self._refused(problem, repository) from error

    def _refused(self, problem: HubProblem, repository: str) -> HubError:
        """Return a refusal; of a model that is not there, with what may have been meant."""
        if problem.kind == "missing":
            problem = hub_problems.missing(repository, did_you_mean(repository, self._known))
        return HubError(problem)


def _bounded(chunks: Iterator[bytes], most: int) -> bytes:
    """Return what comes, until it is more than `most` bytes.

    Raises:
        HubError: it comes too slowly.
    """
    until, found = time.monotonic() + TOTAL_S, bytearray()
    for chunk in chunks:
        found += chunk
        if len(found) > most:
            break
        if time.monotonic() > until:
            raise unreachable(f"an answer took more than {TOTAL_S:g} s")
    return bytes(found)
