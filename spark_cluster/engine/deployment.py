"""What is served, where and with what: resolved once (`resolve.py`), frozen, and handed on.

A deployment has servers, the endpoint where they answer, and the folder of their caches.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, cast
from urllib.parse import urlsplit

from spark_cluster.config.engines import words
from spark_cluster.config.folders import CACHE_ROOT
from spark_cluster.config.inventory import Inventory, InventoryNode
from spark_cluster.config.inventory_schema import ServeEntry, Tls
from spark_cluster.config.launch import Launch, of_recipe
from spark_cluster.config.ports import LOOPBACK
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_schema import EngineValue, ModelKind, Probe
from spark_cluster.config.recipe_settings import MountedPatch, mounted_patches, mounts_of
from spark_cluster.config.topology import Node
from spark_cluster.engine import proxy
from spark_cluster.engine.names import server_name
from spark_cluster.engine.proxy import Access, ModelServer, Replica, TlsKind
from spark_cluster.errors import Failed, Refused, UsageError
from spark_cluster.node import replies
from spark_cluster.node.containers import ENDPOINT, FIREWALL, MODEL, Kind
from spark_cluster.node.health import Completion, completion_of, request_of
from spark_cluster.runner.session import Answer, Session

if TYPE_CHECKING:
    from spark_cluster.plan.planner import Subject


# The endpoint: where the server answers, and who may use it.
#
# It is asked by one request that a server has to answer by its kind of model: `/health` outlives an
# engine.


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
        body: str | bytes | None = None,
        *,
        timeout: float = 10.0,
        content_type: str = "application/json",
    ) -> Answer:
        """Make one request as a user would, from a node; POST with a body; `timeout` in seconds."""
        return session.http(
            self.path(path),
            method="GET" if body is None else "POST",
            headers={**self.headers, "Content-Type": content_type},
            body=body,
            timeout=timeout,
            certificate=self.certificate,
        )


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
    found = address_in(access.url)
    if found is None:
        return None
    _, host, port = found
    return Endpoint(host, port, labels.get(MODEL, ""), key, tls=access.tls)


def address_in(url: str) -> tuple[str, str, int] | None:
    """Return scheme, host and port of a URL that a node gave; None without host or port."""
    try:
        parts = urlsplit(url)
        return (parts.scheme, parts.hostname, parts.port) if parts.hostname and parts.port else None
    except ValueError:
        return None


def listed_models(answer: Answer) -> dict[str, Any]:
    """Return what an answer to `GET /v1/models` says of each model, by its name; empty for another
    answer."""
    rows = replies.at(replies.decoded(answer.body), "data") if answer.status == 200 else None
    found = rows if isinstance(rows, list) else []
    return {replies.text_of(replies.at(row, "id")): row for row in found}


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
        hint = "`serve.bind` is the head's: `loopback`, `management` or one of these addresses"
        raise _not_its_own(serve.bind, head, hint)
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
    hint = "`serve.bind: management` needs an IP address as the head's `address`"
    raise _not_its_own(node.address, node, hint)


def _not_its_own(address: str, node: Node, hint: str) -> Failed:
    own = ", ".join(sorted(_own_addresses(node)))
    text = f"{address} is not one of the node's own addresses ({own})"
    return Failed(text, where=node.name, hint=hint)


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
    answer = endpoint.request(session, path, body, timeout=timeout, content_type=content_type)
    late = answer.status != 200 and time.monotonic() - began >= timeout
    return replace(completion_of(asked, answer.status, answer.body, answer.reason), late=late)


def short(probe: Probe) -> Probe:
    """Return the question with an answer of a few tokens."""
    return probe.model_copy(update={"max_tokens": min(probe.max_tokens, FEW_TOKENS)})


Key = tuple[str, str]
"""A server's place: the name of its head, and of its program there."""


@dataclass(frozen=True)
class Server:
    """A server of a recipe, on one or several nodes, with all that its programs are started with.

    Attributes:
        recipe: what the user wrote.
        nodes: those that serve, its head first.
        launch: what plans and rules look at.
        endpoint: its own, behind the proxy where there is one for several servers.
        flags: the engine's flags without dashes, the same on all ranks.
        env: environment of the recipe, without its secrets.
        secret_env: variables of the recipe that are secrets.
        model_path: folder of the model, on the node and in the container; empty for Ray alone.
        mounts: `SOURCE:TARGET[:ro]`.
        cache_root: folder of the caches on every node.
        labels: of the containers.
        patches: files mounted over the image's own.
        image_settings: of the role `images`.
        models: settings of the role `models`, for a model and a drafter with folders of their own.
        names: by which the model is asked for, its own first.
        instance: what tells the server of one of several models from the others; empty for one.
        on_request: it is made, and the model loader starts it when it is asked for.
        ray_token: what every request to Ray must carry; None: Ray asks for none.
    """

    recipe: Recipe
    nodes: tuple[Node, ...]
    launch: Launch
    endpoint: Endpoint
    flags: Mapping[str, EngineValue]
    env: Mapping[str, str]
    secret_env: Mapping[str, str] = field(repr=False)
    model_path: str
    mounts: tuple[str, ...]
    cache_root: str
    labels: Mapping[str, str]
    patches: tuple[MountedPatch, ...] = ()
    image_settings: Mapping[str, Any] = field(default_factory=dict)
    models: tuple[Mapping[str, Any], ...] = ()
    names: tuple[str, ...] = ()
    instance: str = ""
    on_request: bool = False
    ray_token: str | None = field(default=None, repr=False)

    @property
    def program(self) -> str:
        """The name of its program: of a container, or of a unit."""
        return server_name(self.instance)

    @property
    def key(self) -> Key:
        """Its place: the name of its head, and of its program there."""
        return self.nodes[0].name, self.program

    @property
    def tp(self) -> int:
        """Tensor-parallel size."""
        return self.launch.tp

    @property
    def size(self) -> int:
        """Nodes that serve together, one GPU each: tensor-parallel size times stages."""
        return len(self.nodes)

    @property
    def node_names(self) -> tuple[str, ...]:
        """The names of its nodes, its head first."""
        return tuple(node.name for node in self.nodes)

    @property
    def venv(self) -> str:
        """Folder of the virtual environment; empty without one."""
        return self.recipe.venv.path if self.recipe.venv else ""

    @property
    def image(self) -> str:
        """Reference of the image; empty without one."""
        return self.recipe.image.ref

    @property
    def on_ray(self) -> bool:
        """True if Ray joins the nodes."""
        return self.size > 1 and self.recipe.executor == "ray"

    @property
    def ranks(self) -> tuple[str, ...]:
        """The names of the nodes next to the head that run a rank of their own (executor mp)."""
        return self.node_names[1:] if self.recipe.executor == "mp" else ()

    @property
    def host(self) -> str:
        """Address that it listens on: the head's loopback, or of a replica or model on another
        node its address on the fabric."""
        return self.endpoint.of_engine.host

    @property
    def port(self) -> int:
        """Port that it listens on."""
        return self.endpoint.of_engine.port

    @property
    def args(self) -> tuple[str, ...]:
        """The flags as words of a command line."""
        return words(self.flags)

    @property
    def chooses_share(self) -> bool:
        """True if the share of memory is for us to choose: nothing in the recipe sets it."""
        settled = {"gpu-memory-utilization", "kv-cache-memory-bytes"}
        return not settled & self.launch.args.keys()

    @property
    def share_flag(self) -> str:
        """The engine's own name of --gpu-memory-utilization, without dashes."""
        return self.recipe.dialect.own("gpu-memory-utilization")

    @cached_property
    def subject(self) -> Subject:
        """The subject for the planner."""
        # Late: formulas and rules are not read for looking that all is up.
        from spark_cluster.plan.planner import of_a_recipe

        return of_a_recipe(self.recipe, self.launch)

    def located(self, folders: Mapping[str, str]) -> Server:
        """Return it with the folders of what is in the nodes' hub cache.

        Args:
            folders: repository to the folder of its revision; others keep what they have.
        """
        recipe = self.recipe.located(folders)
        if recipe == self.recipe:
            return self
        ours = all(patch.upload for patch in self.patches)  # none comes with the model
        patches = self.patches if ours else mounted_patches(recipe)
        drafting = recipe.dialect.drafter(recipe.drafter) if recipe.drafter is not None else {}
        return replace(
            self,
            recipe=recipe,
            launch=of_recipe(recipe, self.tp),
            model_path=recipe.model.node_path,
            flags={**self.flags, **drafting},
            mounts=mounts_of(recipe, patches),
            patches=patches,
        )

    def starting(self, *, share: float | None, ray_token: str | None = None) -> Server:
        """Return it with what is known only when it starts.

        Args:
            share: the --gpu-memory-utilization that was computed; None keeps the recipe's.
        """
        flags = {**self.flags, self.share_flag: share} if share is not None else self.flags
        return replace(self, flags=flags, ray_token=ray_token)


@dataclass(frozen=True)
class Deployment:
    """All that is behind one endpoint: one server over its nodes, replicas, or several models.

    Attributes:
        servers: the head's first.
        nodes: all that serve, the head first.
        idle: the other nodes, on which nothing of the engine is left.
        endpoint: where users reach it.
        firewall: settings of the role `firewall`.
    """

    servers: tuple[Server, ...]
    nodes: tuple[Node, ...]
    idle: tuple[Node, ...]
    endpoint: Endpoint
    firewall: Mapping[str, Any]

    @property
    def first(self) -> Server:
        """The head's server; of several models the first that the inventory names."""
        return self.servers[0]

    @property
    def is_one(self) -> bool:
        """True for one server over all of the nodes."""
        return not self.endpoint.replicas and not self.endpoint.models

    @property
    def recipes(self) -> tuple[Server, ...]:
        """Each recipe once, over all nodes that serve it: for what is fetched and prepared."""
        found: dict[str, Server] = {}
        for server in self.servers:
            known = found.setdefault(server.recipe.name, server)
            if known is not server:
                found[server.recipe.name] = replace(known, nodes=(*known.nodes, *server.nodes))
        return tuple(found.values())

    def with_servers(self, servers: Sequence[Server]) -> Deployment:
        """Return it with these servers in place of its own, in the same order."""
        return replace(self, servers=tuple(servers))

    def located(self, folders: Mapping[str, str]) -> Deployment:
        """Return it with the folders of what is in the nodes' hub cache; see `Server.located`."""
        return self.with_servers([server.located(folders) for server in self.servers])

    def guarded(self, firewall: str) -> Deployment:
        """Return it with the label that says whether there is a firewall: `present`, `absent`."""
        label = {FIREWALL: firewall}
        return self.with_servers([replace(s, labels={**s.labels, **label}) for s in self.servers])


# The folder of the engine's caches: that of the role `caches` in the inventory, or the default.


def root_on(node: InventoryNode) -> str:
    """The folder of the caches on a node, as the setting `root` of the role `caches` has it."""
    return str(node.settings_for("caches").data.get("root", CACHE_ROOT)).rstrip("/")


def root_of_all(nodes: Iterable[InventoryNode]) -> str:
    """The folder of the caches on all nodes that serve together.

    Raises:
        Refused: it differs; the containers of all ranks are made with one.
    """
    roots = {node.name: root_on(node) for node in nodes}
    if len(set(roots.values())) > 1:
        listed = ", ".join(f"{root} on {name}" for name, root in roots.items())
        raise Refused(
            f"the caches of nodes that serve together have different roots: {listed}",
            hint="give `caches: {root: ...}` once, under `settings` of the inventory; a second "
            "disk can be mounted at the same path on each node",
        )
    return next(iter(roots.values()), CACHE_ROOT)
