"""The reverse proxy in front of vLLM on the head: its unit and files, and its keys."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field

from spark_cluster.config.ports import LOOPBACK
from spark_cluster.config.recipe_schema import ModelKind
from spark_cluster.config.schema import Document, Hidden, WhenSet, read_as
from spark_cluster.engine.names import SERVER
from spark_cluster.errors import Failed, UsageError
from spark_cluster.node import paths, probes
from spark_cluster.node.replies import object_in, objects_of
from spark_cluster.resources import Line, Secret
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Session

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

R = TypeVar("R", bound="Replica")

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
        if f"//{LOOPBACK}:" in self.url:  # a node may say any URL, and one that is none
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
    found = object_in(text)
    access = read_as(Access, found)
    return access if {"api_key", "tls"} <= found.keys() else None


def replicas_of(text: str | None) -> tuple[Replica, ...]:
    """Parse the replicas of a node's `endpoint.json`; none where one server is behind it."""
    return _servers(Replica, text, "replicas")


def models_of(text: str | None) -> tuple[ModelServer, ...]:
    """Parse the models of a node's `endpoint.json`; none where it does not serve several."""
    return tuple(one for one in _servers(ModelServer, text, "models") if one.names)


def _servers(kind: type[R], text: str | None, key: str) -> tuple[R, ...]:
    """Return the servers below a key of a node's `endpoint.json`; one that is not right is left
    out."""
    return tuple(filter(None, (read_as(kind, one) for one in objects_of(object_in(text).get(key)))))


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


# Keys of the endpoint by name, next to the inventory's: made, listed and revoked while it runs.
#
# The head keeps the SHA-256 of each, its name and the day. HAProxy reads the file when it starts,
# and is told of changes by its runtime API (HAProxy 2.6, management guide, 9.3: `add map`, `del
# map`). Neither the proxy nor the engine is restarted, and no request is cut.
#
# A run may be cut between the two. A key is therefore written into the file before the proxy
# accepts it, and removed from the proxy before the file. What either of them has is listed and can
# be revoked.

PREFIX = "sk-spark-"
"""Of each key: texts in which it turns up are known to hold a secret (`config/secret.py`)."""

BYTES = 32
"""Random bytes of a key."""

MOST = 1000
"""Named keys of an endpoint."""

ANSWERS_S = 5.0
"""Seconds for an answer of the runtime API, which comes at once."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
INVENTORY = "inventory"
"""The inventory's own key in the proxy's log."""

_LINE = re.compile(r"([0-9A-F]{64})[ \t]*(.*)")
"""A line of HAProxy's map file. Any text may follow the digest; ours is `NAME/DATE`."""

FILE = Line(NAMED_KEYS, line=NAMED_HEADER, create=True, mode=0o600)
"""The file of named keys, which only root reads."""


@dataclass(frozen=True)
class NamedKey(Document):
    """A key of the endpoint, by its name.

    Attributes:
        name: as it was given.
        added: the day, YYYY-MM-DD; empty for a key that was put into the file by hand.
        in_force: the running proxy accepts it.
        kept: the head's file has it, so that the next start of the proxy accepts it.
    """

    name: str
    added: str
    in_force: bool
    kept: bool


@dataclass(frozen=True)
class _Entry:
    """An entry of the map: the digest of a key, and what HAProxy gives for it."""

    digest: str
    value: str

    @property
    def name(self) -> str:
        return self.value.partition("/")[0]


def check_name(name: str) -> None:
    """Raise UsageError for a name that a new key cannot have."""
    if not NAME.fullmatch(name) or name == INVENTORY:
        raise UsageError(
            f"{name!r} is not a name for a key",
            hint="letters, digits and ._- up to 64, such as alice or ci-runner; "
            f"`{INVENTORY}` is the inventory's own",
        )


def new_key() -> str:
    """Return a new random key."""
    return PREFIX + secrets.token_urlsafe(BYTES)


def listed(session: Session, head: str) -> list[NamedKey]:
    """Return the named keys of the head's endpoint, by name.

    Raises:
        Failed: the proxy runs and does not answer.
    """
    kept, accepted = _kept(session), _accepted(session, head)[1]
    found = [
        NamedKey(entry.name, entry.value.partition("/")[2], entry in accepted, entry in kept)
        for entry in kept.keys() | accepted
    ]
    return sorted(found, key=lambda key: (key.name, key.added))


def add(play: Play, name: str, key: str, day: str) -> None:
    """Have the endpoint accept another key.

    Raises:
        UsageError: the endpoint asks for no key, or there is a key of that name already.
        Failed: the proxy could not be told; the key is in force when it starts again.
    """
    session, head = play.session(play.head), play.head.name
    _must_ask_for_keys(session, head)
    known = _kept(session).keys() | _accepted(session, head)[1]
    if any(entry.name == name for entry in known):
        raise UsageError(
            f"there is a key {name!r} already",
            where=head,
            hint=f"spark-cluster keys revoke {name} makes room for a new one",
        )
    if len(known) >= MOST:
        raise UsageError(f"there are {MOST} keys already", where=head, hint="revoke some of them")
    entry = _Entry(hashlib.sha256(key.encode()).hexdigest().upper(), f"{name}/{day}")
    play.apply(play.head, [FILE, Line(NAMED_KEYS, line=Secret(f"{entry.digest} {entry.value}"))])
    if not play.check:
        _have_accepted(session, head, entry)


def revoke(play: Play, name: str) -> None:
    """Have the endpoint refuse a key from now on; requests that it has begun go on.

    Raises:
        UsageError: neither the file nor the running proxy has a key of that name.
        Failed: the proxy could not be told; the key stays listed.
    """
    session, head = play.session(play.head), play.head.name
    kept = _kept(session)
    found = {e for e in kept.keys() | _accepted(session, head)[1] if e.name == name}
    if not found:
        raise UsageError(
            f"there is no key {name!r}", where=head, hint="spark-cluster keys list shows them"
        )
    if not play.check:
        _have_refused(session, head, found)
    lines = [kept[entry] for entry in found if entry in kept]
    play.apply(play.head, [Line(NAMED_KEYS, line=Secret(line), state="absent") for line in lines])
    if not play.check:  # a proxy that has started meanwhile has read the file as it was
        _have_refused(session, head, found)


def _must_ask_for_keys(session: Session, node: str) -> None:
    access = described(session.read_file(DESCRIPTION))
    if access is None or not access.api_key:
        raise UsageError(
            "the endpoint there asks for no key" if access else "no proxy guards the endpoint",
            where=node,
            hint="set `serve: {api_key: {env: NAME}}` in the inventory, then spark-cluster up",
        )


def _kept(session: Session) -> dict[_Entry, str]:
    """Return the entries of the head's file, each with its line."""
    lines = (session.read_file(NAMED_KEYS) or "").splitlines()
    found = ((_LINE.fullmatch(line.strip()), line) for line in lines)
    return {_Entry(entry[1], entry[2]): line for entry, line in found if entry is not None}


def _accepted(session: Session, node: str) -> tuple[str, set[_Entry]]:
    """Return the number of the running proxy's map and its entries; none without a proxy."""
    shown = _talk(session, node, "show map") or ""
    ending = f"/{NAMED_KEYS.rpartition('/')[2]})"
    number = next(
        (line.split()[0] for line in shown.splitlines() if ending in line and line[:1].isdigit()),
        "",
    )
    if not number:
        return "", set()
    lines = (_talk(session, node, f"show map #{number}") or "").splitlines()
    found = (_LINE.fullmatch(line.partition(" ")[2].strip()) for line in lines)
    return f"#{number}", {_Entry(entry[1], entry[2]) for entry in found if entry is not None}


def _have_accepted(session: Session, node: str, entry: _Entry) -> None:
    number, accepted = _accepted(session, node)
    if not number:
        raise _not_told("it does not run, or takes no named keys", node)
    if entry not in accepted:  # it may have started, and read the file, just now
        _tell(session, node, [f"add map {number} {entry.digest} {entry.value}"])


def _have_refused(session: Session, node: str, entries: set[_Entry]) -> None:
    number, accepted = _accepted(session, node)
    _tell(session, node, [f"del map {number} {e.digest}" for e in entries & accepted])


def _tell(session: Session, node: str, commands: list[str]) -> None:
    answer = (_talk(session, node, *commands) or "").strip() if commands else ""
    if answer:
        raise _not_told(answer[:200], node)


def _not_told(why: str, node: str) -> Failed:
    return Failed(
        f"the proxy ({UNIT}) that runs was not told: {why}",
        where=node,
        hint="spark-cluster status shows whether it runs; `spark-cluster up` starts one that "
        "takes the keys of the file",
    )


def _talk(session: Session, node: str, *commands: str) -> str | None:
    """Return what the runtime API answers; None when no proxy runs that has one.

    Raises:
        Failed: the proxy does not answer.
    """
    done = session.run(
        [ADMIN_SOCKET, str(ANSWERS_S)],
        program=f"{probes.__name__}:talk",
        stdin=f"{'; '.join(commands)}\n",
        timeout=4 * ANSWERS_S,
    )
    if done.status == probes.NOT_RUNNING:
        return None
    if done.status != 0:
        said = done.stderr.strip().rpartition("\n")[2] or f"status {done.status}"
        raise Failed(
            f"the proxy ({UNIT}) does not answer on {ADMIN_SOCKET}: {said[:200]}",
            where=node,
            hint=f"look at it with `systemctl status {UNIT}` on the node, then run this again",
        )
    return done.stdout
