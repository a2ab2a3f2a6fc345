"""Sources of a model's documents: what is asked of one, and the hub as its library reaches it."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Protocol
from urllib.parse import quote

from spark_cluster.config.suggest import did_you_mean
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


# The hub, asked from this machine with its own library: tokens, proxies and endpoint are its.

REQUEST_S = 10.0
"""Longest wait for the next bytes of an answer, seconds."""
TOTAL_S = 45.0
"""Longest that one document may take, seconds."""
ALL_S = 90.0
"""Longest that the headers of all files may take, seconds."""
AT_A_TIME = 8
LARGEST_LISTING = 16 << 20
"""Bytes of the description of a repository."""


class HubLibrary:
    """The hub as `huggingface_hub` reaches it.

    Args:
        endpoint: of another hub than HF_ENDPOINT names.
        known: names of models, for suggestions.
    """

    def __init__(self, endpoint: str | None = None, known: tuple[str, ...] = ()) -> None:
        self._endpoint = endpoint
        self._known = known

    def listing(self, repository: str, revision: str) -> Listing:
        """The files of a revision.

        Raises:
            HubError: there is no such repository, or it cannot be asked.
        """
        from huggingface_hub import constants

        base = (self._endpoint or constants.ENDPOINT).rstrip("/")
        url = f"{base}/api/models/{repository}/revision/{quote(revision, safe='')}?blobs=true"
        text, whole = self._get(url, repository, revision, 0, LARGEST_LISTING)
        if not whole:
            raise wrong_answer(f"the description of {repository} is too long")
        return listing_of(text, repository)

    def read(
        self, repository: str, commit: str, name: str, *, begin: int = 0, most: int
    ) -> tuple[bytes, bool]:
        """Bytes of a file from a place on, `most` at most, and whether the file ends there.

        Raises:
            HubError: it cannot be read.
        """
        from huggingface_hub import hf_hub_url

        url = hf_hub_url(repository, name, revision=commit, endpoint=self._endpoint)
        return self._get(url, repository, commit, begin, most, ranged=True)

    def beginnings(
        self, repository: str, commit: str, names: Sequence[str], most: int
    ) -> list[bytes]:
        """The first bytes of several files, `most` of each at most.

        Raises:
            HubError: one of them cannot be read, or all take too long.
        """
        from concurrent.futures import ThreadPoolExecutor

        until = time.monotonic() + ALL_S

        def one(name: str) -> bytes:
            if time.monotonic() > until:
                raise wrong_answer(f"the headers of {repository} took more than {ALL_S:g} s")
            return self.read(repository, commit, name, most=most)[0]

        with ThreadPoolExecutor(min(AT_A_TIME, len(names))) as pool:
            return list(pool.map(one, names))

    def _get(
        self,
        url: str,
        repository: str,
        revision: str,
        begin: int,
        most: int,
        *,
        ranged: bool = False,
    ) -> tuple[bytes, bool]:
        from huggingface_hub import get_session
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        headers = dict(build_hf_headers(library_name="spark-cluster"))
        if ranged:
            headers["Range"] = f"bytes={begin}-{begin + most - 1}"
        with (
            self._explained(repository, revision),
            get_session().stream("GET", url, headers=headers, timeout=REQUEST_S) as response,
        ):
            if response.status_code == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                return b"", True
            if response.status_code not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
                problem = hub_problems.of_answer(
                    response.status_code, response.headers, repository, revision
                )
                raise self._refused(problem, repository)
            if begin and response.status_code == HTTPStatus.OK:
                raise wrong_answer("it does not give parts of files")
            body, ended = _bounded(response.iter_bytes(), most)
            if response.status_code == HTTPStatus.PARTIAL_CONTENT and ended:
                ended = _is_the_end(response.headers.get("Content-Range", ""), begin + len(body))
            return body, ended

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


def _bounded(chunks: Iterator[bytes], most: int) -> tuple[bytes, bool]:
    """Return what comes, `most` bytes at most, and whether that was all.

    Raises:
        HubError: it comes too slowly.
    """
    until, found, size = time.monotonic() + TOTAL_S, [], 0
    for chunk in chunks:
        found.append(chunk)
        size += len(chunk)
        if size > most:
            return b"".join(found)[:most], False
        if time.monotonic() > until:
            raise unreachable(f"an answer took more than {TOTAL_S:g} s")
    return b"".join(found), True


def _is_the_end(content_range: str, place: int) -> bool:
    """Return whether a file ends there, by `bytes 0-99/1234`."""
    total = content_range.rpartition("/")[2]
    return not total.isdecimal() or int(total) <= place
