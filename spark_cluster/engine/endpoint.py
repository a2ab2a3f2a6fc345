"""The endpoint: where the server answers, and who may use it.

It is asked by one request that a server has to answer by its kind of model: `/health` outlives an
engine.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast
from urllib.parse import urlsplit

from spark_cluster.config.inventory import Inventory
from spark_cluster.config.inventory_schema import ServeEntry, Tls
from spark_cluster.config.model_kind import ModelKind
from spark_cluster.config.ports import LOOPBACK
from spark_cluster.config.recipe_schema import Probe
from spark_cluster.config.topology import Node
from spark_cluster.engine import proxy
from spark_cluster.engine.proxy import Access, ModelServer, Replica, TlsKind
from spark_cluster.errors import Failed, UsageError
from spark_cluster.node.containers import ENDPOINT, MODEL, Kind
from spark_cluster.node.health import Completion, completion_of, request_of
from spark_cluster.runner.session import Answer, Session


@dataclass(frozen=True)
class Endpoint:
    """The server's endpoint, seen from the head.

    Attributes:
        host, port: where users reach it.
        model: name to ask for.
        api_key: what requests carry; shown nowhere.
        engine_port: vLLM's own port on the loopback, behind the proxy; None without a proxy.
        tls: where the certificate comes from; None for plain HTTP.
        pem: the user's certificate and its private key; shown nowhere.
        replicas: the servers behind the proxy, where there are several of one model.
        models: the same where there are several models.
    """

    host: str
    port: int
    model: str
    api_key: str | None = field(default=None, repr=False)
    engine_port: int | None = None
    tls: TlsKind | None = None
    pem: str | None = field(default=None, repr=False)
    replicas: tuple[Replica, ...] = ()
    models: tuple[ModelServer, ...] = ()

    @property
    def url(self) -> str:
        """The OpenAI base URL."""
        return self.path("/v1")

    @property
    def engine_url(self) -> str:
        """vLLM's own base URL: on the head's loopback, or without a proxy the endpoint's."""
        return self.of_engine.url

    @property
    def of_engine(self) -> Endpoint:
        """The engine's own endpoint behind the proxy; the same where there is no proxy."""
        if self.engine_port is None:
            return self
        return Endpoint(LOOPBACK, self.engine_port, self.model)

    def path(self, path: str) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}{path}"

    @property
    def headers(self) -> dict[str, str]:
        base = {"Content-Type": "application/json"}
        return {**base, "Authorization": f"Bearer {self.api_key}"} if self.api_key else base

    @property
    def certificate(self) -> str | None:
        """The file on the head with the one certificate that requests accept."""
        return self.access().certificate

    def access(self, fingerprint: str = "") -> Access:
        """Return who can reach it; with the SHA-256 of the certificate that was presented."""
        return Access(self.url, self.api_key is not None, self.tls, fingerprint)

    def request(
        self,
        session: Session,
        path: str,
        *,
        method: str = "GET",
        body: str | bytes | None = None,
        timeout: float = 10.0,
        content_type: str = "application/json",
    ) -> Answer:
        """Make one request as a user would, from a node; `timeout` in seconds."""
        return session.http(
            self.path(path),
            method=method,
            headers={**self.headers, "Content-Type": content_type},
            body=body,
            timeout=timeout,
            certificate=self.certificate,
        )

    def proxy_settings(self) -> dict[str, Any]:
        """Settings of the role `endpoint`; none, which takes it away, without a proxy."""
        if self.engine_port is None:
            return {}
        return {
            "host": self.host,
            "port": self.port,
            "engine_port": self.engine_port,
            "url": self.url,
            "api_key": self.api_key,
            "tls": self.tls,
            "certificate": self.pem,
            "replicas": self.replicas,
            "models": self.models,
        }


def endpoint_of(inventory: Inventory, head: Node, model: str) -> Endpoint:
    """Return where the server will answer, as the inventory says.

    Args:
        model: the name to ask for.

    Raises:
        UsageError: the key or the certificate cannot be read, or cannot be used.
        Failed: the address is not one of the head's own.
    """
    serve = inventory.serve
    return Endpoint(
        address_of(serve, head),
        serve.port,
        model,
        _key(inventory),
        serve.engine_port if serve.proxied else None,
        _tls_kind(serve.tls),
        serve.tls.read() if serve.tls is not None else None,
    )


def running(labels: Mapping[str, str], description: str | None, key: str | None) -> Endpoint | None:
    """Return the endpoint of a running server; None when it is not known.

    Args:
        labels: of its container.
        description: text of `proxy.DESCRIPTION` on its node, when there is such a file.
        key: the API key of the inventory.
    """
    access = proxy.described(description) or Access(labels.get(ENDPOINT, ""))
    parts = urlsplit(access.url)
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if not host or port is None:
        return None
    return Endpoint(host, port, labels.get(MODEL, ""), key, tls=access.tls)


def address_of(serve: ServeEntry, head: Node) -> str:
    """The address that the endpoint listens on.

    Raises:
        Failed: it is not one of the head's own.
    """
    if serve.bind == "loopback":
        return LOOPBACK
    if serve.bind == "management":
        return management_ip(head)
    own = _own_addresses(head)
    if serve.bind not in own:
        raise Failed(
            f"{serve.bind} is not one of the node's own addresses ({', '.join(sorted(own))})",
            where=head.name,
            hint="`serve.bind` is the head's: `loopback`, `management` or one of these addresses",
        )
    return serve.bind


def management_ip(node: Node) -> str:
    """The node's own IP address that its inventory address means."""
    own = _own_addresses(node)
    if node.address in own:
        return node.address
    try:
        known = {str(info[4][0]) for info in socket.getaddrinfo(node.address, None)}
    except OSError:
        known = set()
    if own & known:
        return sorted(own & known)[0]
    raise Failed(
        f"{node.address} is not one of the node's own addresses ({', '.join(sorted(own))})",
        where=node.name,
        hint="`serve.bind: management` needs an IP address as the head's `address`",
    )


def _own_addresses(node: Node) -> set[str]:
    return {str(a.ip) for i in node.facts.interfaces for a in i.addresses}


def _key(inventory: Inventory) -> str | None:
    """The API key, if there shall be one, as a header can carry it."""
    key = inventory.api_key()
    if key is None:
        return None
    if not key.isascii() or not key.isprintable() or set(key) & set(' ,"'):
        raise UsageError(
            "the API key has a character that the header Authorization cannot carry",
            hint="letters, digits and -._~+/= are fine; `openssl rand -hex 24` makes a good one",
        )
    return key


def _tls_kind(tls: Tls | None) -> TlsKind | None:
    if tls is None:
        return None
    return "self-signed" if tls.self_signed else "certificate"


ANSWERS: Mapping[ModelKind, str] = {
    "chat": "a completion",
    "embedding": "an embedding",
    "reranking": "a score",
    "transcription": "a transcript",
}
"""What a server of each kind answers with, in a sentence."""

FEW_TOKENS = 16
"""Tokens that show that answers come; `verify` and `up` wait for a whole one."""


def probe_once(
    session: Session, endpoint: Endpoint, kind: ModelKind, probe: Probe, *, timeout: float
) -> Completion:
    """Return the answer to one request of the kind, made by a node, within `timeout` seconds.

    Args:
        probe: the question for a chat model.
    """
    asked = cast("Kind", kind)
    path, body, content_type = request_of(asked, endpoint.model, probe.question, probe.max_tokens)
    began = time.monotonic()
    answer = endpoint.request(
        session, path, method="POST", body=body, timeout=timeout, content_type=content_type
    )
    late = answer.status != 200 and time.monotonic() - began >= timeout
    return replace(completion_of(asked, answer.status, answer.body, answer.reason), late=late)


def short(probe: Probe) -> Probe:
    """Return the question with an answer of a few tokens."""
    return probe.model_copy(update={"max_tokens": min(probe.max_tokens, FEW_TOKENS)})
