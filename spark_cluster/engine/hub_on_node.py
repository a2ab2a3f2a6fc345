"""The hub, asked by a node: for a laptop that does not reach it where its Sparks do.

The node's agent makes the requests (HTTPS, verified, limited in size and time) and no token goes
with them: the laptop's stays there. What is asked for are addresses of the hub and, where it sends
large files' readers on, of its own stores; nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any
from urllib.parse import quote, urljoin, urlsplit

from spark_cluster.models.hub.documents import (
    HubError,
    Listing,
    listing_of,
    unreachable,
    wrong_answer,
)
from spark_cluster.node.store import hub_problems
from spark_cluster.runner.session import Session

HUB = "https://huggingface.co"
STORES = (".huggingface.co", ".hf.co")
"""Hosts below these are the hub's own."""
KEPT = ("Location", "Content-Range", "X-Error-Code", "X-Error-Message", "Retry-After")
REDIRECTS = 3
AT_A_TIME = 16
"""Requests in one exchange with the node."""
TIMEOUT_S = 30.0
"""Longest that one exchange may take, seconds."""
MOVED = (301, 302, 303, 307, 308)


class NodeDocuments:
    """The hub as a node reaches it.

    Args:
        session: with the node.
        endpoint: of another hub than HF_ENDPOINT names.
    """

    def __init__(self, session: Session, endpoint: str | None = None) -> None:
        self._session = session
        named = (endpoint or os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")
        self._endpoint = _without_password(named)

    def listing(self, repository: str, revision: str) -> Listing:
        """The files of a revision.

        Raises:
            HubError: there is no such repository, or it cannot be asked.
        """
        path = f"/api/models/{repository}/revision/{quote(revision, safe='')}?blobs=true"
        (reply,) = self._answers(repository, revision, [(path, "")])
        return listing_of(_body(reply), repository)

    def read(
        self, repository: str, commit: str, name: str, *, begin: int = 0, most: int
    ) -> tuple[bytes, bool]:
        """Bytes of a file from a place on, `most` at most, and whether the file ends there.

        Raises:
            HubError: it cannot be read.
        """
        path = _path(repository, commit, name)
        (reply,) = self._answers(repository, commit, [(path, _range(begin, most))])
        if reply["status"] == HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return b"", True
        if begin and reply["status"] == HTTPStatus.OK:
            raise wrong_answer("it does not give parts of files")
        body = _body(reply)
        total = str(reply["headers"].get("Content-Range", "")).rpartition("/")[2]
        ended = int(total) <= begin + len(body) if total.isdecimal() else len(body) <= most
        return body[:most], ended

    def beginnings(
        self, repository: str, commit: str, names: Sequence[str], most: int
    ) -> list[bytes]:
        """The first bytes of several files, `most` of each at most.

        Raises:
            HubError: one of them cannot be read.
        """
        found: list[bytes] = []
        wanted = [(_path(repository, commit, name), _range(0, most)) for name in names]
        for place in range(0, len(wanted), AT_A_TIME):
            replies = self._answers(repository, commit, wanted[place : place + AT_A_TIME])
            found += [_body(reply)[:most] for reply in replies]
        return found

    def _answers(
        self, repository: str, revision: str, wanted: Sequence[tuple[str, str]]
    ) -> list[dict[str, Any]]:
        """The answers to paths of the hub, each with a range or none; all in one exchange, and one
        more for each time that they are sent on.
        """
        replies: dict[int, dict[str, Any]] = {}
        asked = {i: self._endpoint + path for i, (path, _) in enumerate(wanted)}
        for _ in range(REDIRECTS + 1):
            replies |= self._exchange(asked, wanted)
            asked = {
                i: self._sent_on(asked[i], reply)
                for i, reply in replies.items()
                if i in asked and reply["status"] in MOVED
            }
            if not asked:
                break
        for reply in replies.values():
            _must_be_an_answer(reply, repository, revision)
        return [replies[i] for i in range(len(wanted))]

    def _exchange(
        self, asked: dict[int, str], wanted: Sequence[tuple[str, str]]
    ) -> dict[int, dict[str, Any]]:
        requests = {}
        for i, url in asked.items():
            headers = {"Range": wanted[i][1]} if wanted[i][1] else {}
            requests[str(i)] = {
                "url": url,
                "headers": {**headers, "User-Agent": "spark-cluster"},
                "timeout": TIMEOUT_S,
                "encoding": "latin-1",
                "keep": KEPT,
            }
        answer = self._session.request("gather", requests=requests, timeout=TIMEOUT_S)
        found = answer.get("requests", {})
        silent = {"status": 0, "body": "", "reason": "the node gave no answer"}
        return {i: {"headers": {}, **found.get(str(i), silent)} for i in asked}

    def _sent_on(self, url: str, reply: dict[str, Any]) -> str:
        """Where an answer sends its reader.

        Raises:
            HubError: to a host that is not the hub's.
        """
        target = urljoin(url, str(reply["headers"].get("Location", "")))
        where, home = urlsplit(target), urlsplit(self._endpoint)
        own = where.scheme == "https" and f".{where.hostname}".endswith(STORES)
        if not own and (where.scheme, where.netloc) != (home.scheme, home.netloc):
            raise wrong_answer(f"it sends on to {(where.hostname or 'nowhere')[:100]!r}")
        return target


def _without_password(url: str) -> str:
    """Return an address without user and password: those are the laptop's, as its token is."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _path(repository: str, commit: str, name: str) -> str:
    return f"/{repository}/resolve/{commit}/{quote(name)}"


def _range(begin: int, most: int) -> str:
    return f"bytes={begin}-{begin + most - 1}"


def _body(reply: dict[str, Any]) -> bytes:
    return str(reply["body"]).encode("latin-1", errors="replace")


def _must_be_an_answer(reply: dict[str, Any], repository: str, revision: str) -> None:
    """Raises:
    HubError: it is a refusal, or none came.
    """
    status = reply["status"]
    if status in (
        HTTPStatus.OK,
        HTTPStatus.PARTIAL_CONTENT,
        HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE,
    ):
        return
    if status == 0:
        raise unreachable(f"from the node: {str(reply.get('reason', ''))[:200]}")
    raise HubError(hub_problems.of_answer(status, reply["headers"], repository, revision))
