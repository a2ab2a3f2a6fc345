"""The hub, asked by a node: for a laptop that does not reach it where its Sparks do.

The node's agent makes the requests (HTTPS, verified, limited in size and time) and no token goes
with them: the laptop's stays there. What is asked for are addresses of the hub and, where it sends
large files' readers on, of its own stores; nothing else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import urljoin, urlsplit

from spark_cluster.models.hub import (
    GIVEN,
    HubDocuments,
    HubError,
    HubRequest,
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


class NodeDocuments(HubDocuments):
    """The hub as a node reaches it.

    Args:
        session: with the node.
        endpoint: of another hub than HF_ENDPOINT names.
    """

    def __init__(self, session: Session, endpoint: str | None = None) -> None:
        self._session = session
        named = (endpoint or os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")
        self._endpoint = _without_password(named)

    def _answers(
        self, repository: str, revision: str, asked: Sequence[HubRequest]
    ) -> list[tuple[bytes, bool]]:
        """Ask AT_A_TIME in one exchange, and in one more for each time that they are sent on."""
        found: list[tuple[bytes, bool]] = []
        for place in range(0, len(asked), AT_A_TIME):
            some = asked[place : place + AT_A_TIME]
            for one, reply in zip(some, self._replies(some), strict=True):
                _must_be_an_answer(reply, repository, revision)
                body = str(reply["body"]).encode("latin-1", errors="replace")
                content_range = str(reply["headers"].get("Content-Range", ""))
                found.append(one.answered(reply["status"], content_range, body))
        return found

    def _replies(self, asked: Sequence[HubRequest]) -> list[dict[str, Any]]:
        """Return the last reply to each; one that is sent on without end has one that says so."""
        replies: dict[int, dict[str, Any]] = {}
        urls = {i: self._endpoint + one.path for i, one in enumerate(asked)}
        for _ in range(REDIRECTS + 1):
            replies |= self._exchange(urls, asked)
            urls = {
                i: self._sent_on(url, replies[i])
                for i, url in urls.items()
                if replies[i]["status"] in MOVED
            }
            if not urls:
                break
        return [replies[i] for i in range(len(asked))]

    def _exchange(
        self, urls: Mapping[int, str], asked: Sequence[HubRequest]
    ) -> dict[int, dict[str, Any]]:
        requests = {
            str(i): {
                "url": url,
                "headers": {**asked[i].headers, "User-Agent": "spark-cluster"},
                "timeout": TIMEOUT_S,
                "encoding": "latin-1",
                "keep": KEPT,
            }
            for i, url in urls.items()
        }
        answer = self._session.request("gather", requests=requests, timeout=TIMEOUT_S)
        found = answer.get("requests", {})
        silent = {"status": 0, "body": "", "reason": "the node gave no answer"}
        return {i: {"headers": {}, **found.get(str(i), silent)} for i in urls}

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


def _must_be_an_answer(reply: dict[str, Any], repository: str, revision: str) -> None:
    """Raises:
    HubError: it is a refusal, or none came.
    """
    status = reply["status"]
    if status in GIVEN:
        return
    if status == 0:
        raise unreachable(f"from the node: {str(reply.get('reason', ''))[:200]}")
    raise HubError(hub_problems.of_answer(status, reply["headers"], repository, revision))
