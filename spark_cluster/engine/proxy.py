"""The reverse proxy in front of vLLM on the head: what it is called and where its files are."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import Field

from spark_cluster.config.ports import LOOPBACK
from spark_cluster.config.recipe_schema import MODEL_KINDS, ModelKind
from spark_cluster.config.schema import Document, Hidden, WhenSet
from spark_cluster.engine.names import SERVER
from spark_cluster.node import paths

UNIT = "spark-cluster-endpoint"
"""Its systemd unit."""

FOLDER = paths.ENDPOINT
CONFIG = f"{FOLDER}/haproxy.cfg"
KEYS = f"{FOLDER}/api-keys"
"""SHA-256 digests of the keys that open the endpoint; only root reads it."""

NAMED_KEYS = f"{FOLDER}/named-keys"
"""Keys that `keys add` made, as a map of HAProxy: `DIGEST NAME/DATE`; only root reads it, and
`down` leaves it."""

NAMED_HEADER = "# SHA-256 of each key, its name and the day: see `spark-cluster keys --help`."

ADMIN_SOCKET = f"/run/{UNIT}/admin.sock"
"""HAProxy's runtime API, for root and the proxy's own user."""

LOADER_UNIT = "spark-cluster-model-loader"
"""The systemd unit of what loads models on request."""

LOADER = f"/run/{LOADER_UNIT}/http.sock"
"""Where it takes requests for models that are not loaded."""

HEADER = "X-Spark-Cluster-Program"
"""Header in which the proxy tells it which model's server is meant."""

CERTIFICATE = f"{FOLDER}/certificate.pem"
"""The certificate that the user named, with its private key; only root reads it."""

SELF_SIGNED = f"{FOLDER}/self-signed.pem"
"""The certificate that was made on the node, with its private key; `down` leaves it, so that who
trusts it still does after the next `up`."""

DESCRIPTION = f"{FOLDER}/endpoint.json"
"""What is in force, for `status` and `doctor`."""

NOT_SERVED = "engine_unreachable"
"""`code` of the proxy's own error when vLLM does not take connections; vLLM's have others."""

TlsKind = Literal["self-signed", "certificate"]


@dataclass(frozen=True)
class Replica:
    """A server of several that the proxy shares the requests out to.

    Attributes:
        node: name of the node that it runs on.
        address, port: where it listens: the head's loopback, or another node's address on the
            fabric.
        program: name of its container, or of the unit.
    """

    node: str
    address: str
    port: int
    program: str = SERVER

    @property
    def url(self) -> str:
        """Its own OpenAI base URL, behind the proxy."""
        return f"http://{self.address}:{self.port}/v1"

    def to_dict(self) -> dict[str, Any]:
        """Return it as the proxy's description has it."""
        return {"node": self.node, "address": self.address, "port": self.port}


@dataclass(frozen=True)
class ModelServer(Replica):
    """The server of one of several models, to which the proxy sends the requests for it.

    Attributes:
        names: all names by which it is asked for, its own first.
        kind: what the model answers.
        on_request: it is loaded when it is asked for.
    """

    names: tuple[str, ...] = ()
    kind: ModelKind = "chat"
    on_request: bool = False

    @property
    def model(self) -> str:
        """Its own name, which its answers carry."""
        return self.names[0]

    def to_dict(self) -> dict[str, Any]:
        """Return it as the proxy's description has it."""
        own = {"names": list(self.names), "program": self.program, "kind": self.kind}
        loads = {"on_request": True} if self.on_request else {}
        return {**super().to_dict(), **own, **loads}


@dataclass(frozen=True)
class Access(Document):
    """The access to the endpoint: who can reach it, and how it is protected.

    Attributes:
        url: the OpenAI base URL.
        api_key: whether requests must carry a key.
        tls: where the certificate comes from; None for plain HTTP.
        fingerprint: SHA-256 of the certificate that was presented, in hex; empty when not seen.
    """

    url: Hidden[str]
    api_key: bool = False
    tls: TlsKind | None = None
    fingerprint: Annotated[WhenSet[str], Field(serialization_alias="certificate_sha256")] = ""

    @property
    def certificate(self) -> str | None:
        """The file on the head with the certificate; None for plain HTTP."""
        return {None: None, "self-signed": SELF_SIGNED, "certificate": CERTIFICATE}[self.tls]

    def __str__(self) -> str:
        """Describe how it is protected."""
        key = "with the API key" if self.api_key else "without a key"
        if urlsplit(self.url).hostname == LOOPBACK:
            who = f"reached on the head only, {key}"
        else:
            who = f"reached from the network, {key}"
        if self.tls is None:
            return f"{who}; plain HTTP"
        kind = "a self-signed certificate" if self.tls == "self-signed" else "your certificate"
        shown = f", SHA-256 fingerprint {colons(self.fingerprint)}" if self.fingerprint else ""
        return f"{who}; TLS with {kind}{shown}"


def colons(fingerprint: str) -> str:
    """A hexadecimal fingerprint as openssl and browsers show it."""
    text = fingerprint.upper()
    return ":".join(text[i : i + 2] for i in range(0, len(text), 2))


def described(text: str | None) -> Access | None:
    """Parse a node's `endpoint.json`; None without such a file, or when it is invalid."""
    try:
        found = json.loads(text or "")
        tls = found["tls"]
        if tls not in (None, "self-signed", "certificate"):
            return None
        return Access(str(found["url"]), bool(found["api_key"]), tls)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return None


def replicas_of(text: str | None) -> tuple[Replica, ...]:
    """Parse the replicas of a node's `endpoint.json`; none where one server is behind it."""
    try:
        found = json.loads(text or "").get("replicas", [])
        return tuple(Replica(str(r["node"]), str(r["address"]), int(r["port"])) for r in found)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ()


def models_of(text: str | None) -> tuple[ModelServer, ...]:
    """Parse the models of a node's `endpoint.json`; none where it does not serve several."""
    try:
        found = json.loads(text or "").get("models", [])
        return tuple(
            ModelServer(
                *(str(m["node"]), str(m["address"]), int(m["port"])),
                names=(str(m["names"][0]), *map(str, m["names"][1:])),
                program=str(m["program"]),
                kind=m["kind"],
                on_request=m.get("on_request") is True,
            )
            for m in found
            if m["kind"] in MODEL_KINDS
        )
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return ()


def refused_by_proxy(status: int, body: str) -> bool:
    """Return whether an answer is the proxy's own, because vLLM does not accept connections."""
    return status == 503 and NOT_SERVED in body


CONNECTIONS = 256
"""Connections at a time where the proxy reads bodies for their model: each has two large buffers
at most."""

BUFFER = 2 * 1024 * 1024
"""Bytes of a request's body within which its "model" must be; openai-python puts it after the
messages."""

OWN_FAULT = ("invalid_api_key", "bad_request", "model_not_found", "model_missing")
"""Codes of errors that are the request's own fault."""


@dataclass(frozen=True)
class Routes:
    """The servers of several models, and what the proxy answers itself.

    Attributes:
        hears: number, from 1, of the one server that takes audio; None where there is none, or
            several.
        listed: the answer to `GET /v1/models`.
        unknown, unnamed: the errors for a model that is not served, and for none.
        loader: socket of what loads models on request; empty where none is.
        header: in which it is told the name of the program.
    """

    servers: tuple[ModelServer, ...]
    hears: int | None
    listed: str
    unknown: str
    unnamed: str
    loader: str = ""
    header: str = HEADER
    connections: int = CONNECTIONS
    buffer: int = BUFFER


def routes(servers: Sequence[ModelServer]) -> Routes | None:
    """Return the routes to these servers; None for none."""
    if not servers:
        return None
    hearing = [n for n, server in enumerate(servers, 1) if server.kind == "transcription"]
    names = [name for server in servers for name in server.names]
    known = f"there are: {', '.join(names)}"
    return Routes(
        tuple(servers),
        hearing[0] if len(hearing) == 1 else None,
        _listed(servers),
        error_body(f"this endpoint has no such model; {known}", "model_not_found", "model"),
        error_body(
            "this endpoint has several models, and the request names none within the first "
            f"{BUFFER // 2**20} MiB of its JSON; add ?model=NAME to the address of a longer one; "
            f"{known}",
            "model_missing",
            "model",
        ),
        LOADER if any(server.on_request for server in servers) else "",
    )


def _listed(servers: Sequence[ModelServer]) -> str:
    """The list of models as OpenAI's and vLLM's servers give it; aliases name their model."""
    data = [
        {
            "id": name,
            "object": "model",
            "created": 0,
            "owned_by": "spark-cluster",
            "root": server.model,
            "parent": None,
        }
        for server in servers
        for name in server.names
    ]
    return json.dumps({"object": "list", "data": data})


def error_body(message: str, code: str, param: str | None = None) -> str:
    """An error as OpenAI's servers write it."""
    kind = "invalid_request_error" if code in OWN_FAULT else "server_error"
    error = {"message": message, "type": kind, "param": param, "code": code}
    return json.dumps({"error": error})
