"""The inventory: the nodes, with all their settings resolved and merged."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path
from typing import Any, Literal

from spark_cluster.config.extension import Prompts
from spark_cluster.config.inventory_schema import (
    FIRST_HOST,
    BecomeEntry,
    FabricInterface,
    InventoryFile,
    ServeEntry,
    SshEntry,
    check,
    unknown_role_settings,
)
from spark_cluster.config.schema import validate
from spark_cluster.config.secret import SecretReference
from spark_cluster.config.yamlfile import Key, Origin, Sourced, did_you_mean
from spark_cluster.errors import UsageError
from spark_cluster.node.replies import at

GRAMMAR = "NAME, GROUP or GLOB, joined by ',' or ':'; !X leaves X out, &X keeps only what is in X"


def selected(pattern: str, nodes: Sequence[str], groups: Mapping[str, frozenset[str]]) -> list[str]:
    """The names of the selected nodes, in the order of the inventory.

    As in Ansible, the order of the terms does not matter: first what is named, then only what is
    in every `&` term, then without every `!` term. A pattern that only takes away starts from all.

    Args:
        pattern: terms joined by commas or colons.
        nodes: the names of all nodes.
        groups: the members of each group.

    Raises:
        UsageError: a term names nothing, or no node is left.
    """
    terms = [term.strip() for term in re.split(r"[,:]", pattern)]
    terms = [term for term in terms if term]
    if not terms:
        raise UsageError("the node pattern is empty", hint=GRAMMAR)
    named = [term for term in terms if term[0] not in "!&"]
    chosen = set(nodes) if not named else set[str]()
    for term in named:
        chosen |= _members(term, nodes, groups, pattern)
    for term in terms:
        if term[0] == "&":
            chosen &= _members(term[1:], nodes, groups, pattern)
    for term in terms:
        if term[0] == "!":
            chosen -= _members(term[1:], nodes, groups, pattern)
    if not chosen:
        raise UsageError(f"the node pattern '{pattern}' selects no node", hint=GRAMMAR)
    return [name for name in nodes if name in chosen]


def _members(
    term: str, nodes: Sequence[str], groups: Mapping[str, frozenset[str]], pattern: str
) -> set[str]:
    term = term.strip()
    if term in groups:
        return set(groups[term])
    found = {name for name in nodes if fnmatchcase(name, term)}
    for group, members in groups.items():
        if fnmatchcase(group, term):
            found |= members
    # Also in a `!` term: a typo there would otherwise run on the node that was to be spared.
    if not found:
        raise UsageError(
            f"the node pattern '{pattern}' names '{term}', which is not a node or group",
            hint=did_you_mean(term, [*nodes, *groups], "known"),
        )
    return found


CONNECT_TIMEOUT_S = 10.0


def merged(source: Sourced, keys: Sequence[Key]) -> Sourced:
    """The mappings at `keys` laid over each other, the last one on top.

    Mappings are merged key by key; anything else, lists too, is replaced as a whole. A key that
    does not exist is skipped. What is missing altogether is reported at the last of the keys.
    """
    data: dict[str, Any] = {}
    origins: dict[Key, Origin] = {(): source.origin(keys[-1])} if keys else {}
    for key in keys:
        layer = at(source.data, *key)
        if isinstance(layer, dict):
            origins[()] = source.origin(key)
            _lay(data, layer)
            inside = (one[len(key) :] for one in source.origins if one[: len(key)] == key)
            origins |= {
                one: source.origins[(*key, *one)] for one in inside if one and _has(layer, one)
            }
    return Sourced(source.path, data, origins)


def _lay(below: dict[str, Any], layer: dict[str, Any]) -> None:
    """Lay a mapping over another one, which it changes."""
    for name, value in layer.items():
        if isinstance(value, dict):
            inner = below.get(name)
            # Never the layer's own mapping: other nodes are made from it too.
            below[name] = inner if isinstance(inner, dict) else {}
            _lay(below[name], value)
        else:
            below[name] = value


def _has(data: Any, key: Key) -> bool:
    """Return whether there is a value at a key; `<<` of YAML leaves origins of what it replaced."""
    for part in key:
        inside = isinstance(data, dict) and part in data
        if not inside and not (isinstance(data, list) and part in range(len(data))):
            return False
        data = data[part]
    return True


@dataclass(frozen=True, slots=True)
class InventoryNode:
    """A node of the inventory. A field that is None is left to the user's ~/.ssh/config.

    Args:
        name: its name in the inventory.
        address: management address, an IP address or a host name.
        index: its place in the inventory, from 0.
        role: head or worker.
        groups: the groups it is in, `all` and its role included.
        connection: `ssh`, or `local` where it is the machine on which this runs.
        namespaces_of: file with the number of a process, whose namespaces on this machine are the
            node; None: the node is the machine itself.
        identity_file, known_hosts: files on the laptop, absolute.
        jump: `[user@]host[:port]`.
        connect_timeout_s: longest wait for a connection, seconds.
        login_password: for a first contact, when no key is accepted yet; never from the file.
        fabric: its interfaces on the link, or `detect`.
    """

    name: str
    address: str
    index: int
    role: Literal["head", "worker"]
    groups: frozenset[str] = frozenset()
    connection: Literal["ssh", "local"] = "ssh"
    namespaces_of: Path | None = None
    user: str | None = None
    port: int | None = None
    identity_file: Path | None = None
    known_hosts: Path | None = None
    jump: str | None = None
    connect_timeout_s: float = CONNECT_TIMEOUT_S
    become: BecomeEntry = field(default=BecomeEntry(), repr=False)
    login_password: SecretReference | None = field(default=None, repr=False)
    fabric: tuple[FabricInterface, ...] | Literal["detect"] = "detect"
    _source: Sourced = field(default=Sourced(Path(), {}), repr=False, compare=False)
    _layers: tuple[Key, ...] = field(default=(), repr=False, compare=False)

    @property
    def is_local(self) -> bool:
        """True if it is on the machine on which this runs, and is reached without SSH."""
        return self.connection == "local"

    @property
    def is_this_machine(self) -> bool:
        """True if it is the machine on which this runs, itself."""
        return self.is_local and self.namespaces_of is None

    @property
    def is_head(self) -> bool:
        """True if this node is the head."""
        return self.role == "head"

    def settings_for(self, role: str) -> Sourced:
        """The settings of a role on this node: cluster, then groups, then the node's own.

        `.data` is the merged mapping; `schema.validate(Model, ...)` on the whole reports an error
        with the line that it comes from.
        """
        return merged(self._source, [(*layer, role) for layer in self._layers])


@dataclass(frozen=True, slots=True)
class Inventory:
    """The inventory: all nodes, and what they serve.

    Args:
        path: the file.
        nodes: by name, in the order of the file.
        groups: the members of each group, `all`, `head` and `worker` included.
        serve: what is served and who can reach it.
        pool: subnets of the link, one for each twin, for nodes with `fabric: detect`.
        mtu: of the link, bytes.
        trusted_network: anyone who reaches the nodes may reach the engine's ports.
        prompts: asks for secrets on the terminal.
    """

    path: Path
    nodes: Mapping[str, InventoryNode]
    groups: Mapping[str, frozenset[str]]
    serve: ServeEntry
    pool: tuple[IPv4Network, ...]
    mtu: int
    trusted_network: bool = False
    prompts: Prompts = field(default_factory=Prompts, repr=False, compare=False)

    def api_key(self) -> str | None:
        """Return the endpoint's API key; None when it has none.

        Raises:
            UsageError: the reference to it leads to nothing.
        """
        secret = self.serve.api_key
        return None if secret is None else secret.read("the API key", self.prompts.ask)

    @property
    def head(self) -> InventoryNode:
        """The head node."""
        return next(node for node in self.nodes.values() if node.is_head)

    @property
    def own_folders(self) -> tuple[str, ...]:
        """Folders of the nodes that settings of roles give to spark-cluster itself."""
        found = (
            node.settings_for(role).data.get(name)
            for node in self.nodes.values()
            for role, name in (
                ("caches", "root"),
                ("hub_library", "path"),
                ("llama_benchy", "path"),
                ("guidellm", "path"),
            )
        )
        return tuple(dict.fromkeys(str(path) for path in found if path))

    def with_port(self, port: int) -> Inventory:
        """Return it with another port of the endpoint.

        Raises:
            UsageError: it is vLLM's own, behind the proxy.
        """
        serve = self.serve.model_copy(update={"port": port})
        if serve.proxied and port in serve.engine_ports:
            raise UsageError(
                f"--port {port}: vLLM's own port behind the endpoint (serve.engine_port)",
                hint="take another one",
            )
        return replace(self, serve=serve)

    def select(self, pattern: str = "all") -> list[InventoryNode]:
        """The nodes of a `--limit` pattern, in order; see `selected`.

        Raises:
            UsageError: the pattern names something unknown, or selects no node.
        """
        return [self.nodes[n] for n in selected(pattern, list(self.nodes), self.groups)]


def fabric_addresses(inventory: Inventory, node: InventoryNode) -> tuple[IPv4Interface, ...]:
    """The node's addresses on the link, one for each twin.

    Those of the inventory where it gives them; otherwise host 11 + index of each subnet of the
    pool, so that they are the same in every run and on every laptop.
    """
    if node.fabric != "detect":
        return tuple(interface.address for interface in node.fabric)
    return tuple(
        IPv4Interface((net[FIRST_HOST + node.index], net.prefixlen)) for net in inventory.pool
    )


def checked(source: Sourced, roles: Collection[str] | None = None) -> Inventory:
    """Check the data of an inventory, and resolve what they say about each node.

    Args:
        roles: names that settings may be for; None takes any.

    Raises:
        InvalidFile: with every problem and its line.
    """
    entry = validate(InventoryFile, source)
    problems = check(entry) + (unknown_role_settings(entry, roles) if roles is not None else [])
    if problems:
        raise source.invalid(problems)
    head = next((n for n, e in entry.nodes.items() if "head" in e.roles), next(iter(entry.nodes)))
    groups = {
        "all": frozenset(entry.nodes),
        "head": frozenset({head}),
        "worker": frozenset(entry.nodes) - {head},
        **{name: frozenset(members) for name, members in entry.groups.items()},
    }
    nodes = {name: _node(name, entry, groups, source) for name in entry.nodes}
    return Inventory(
        source.path,
        nodes,
        groups,
        entry.serve,
        tuple(entry.fabric.pool),
        entry.fabric.mtu,
        entry.trusted_network,
    )


def _node(
    name: str, entry: InventoryFile, groups: Mapping[str, frozenset[str]], source: Sourced
) -> InventoryNode:
    own, shared = entry.nodes[name], entry.ssh
    member_of = [group for group, members in groups.items() if name in members]
    layers: list[Key] = [("settings",), *(("group_settings", group) for group in member_of)]
    ssh = {key: getattr(own, key) or getattr(shared, key) for key in SshEntry.model_fields}
    return InventoryNode(
        name=name,
        address=own.address,
        index=list(entry.nodes).index(name),
        role="head" if name in groups["head"] else "worker",
        groups=frozenset(member_of),
        connection=own.connection,
        namespaces_of=own.namespaces_of,
        become=entry.become,
        fabric="detect" if own.fabric is None else tuple(own.fabric.interfaces),
        _source=source,
        _layers=(*layers, ("nodes", name, "settings")),
        **{key: value for key, value in ssh.items() if value is not None},
    )


PRIVATE = {"bind": "loopback", "api_key": None, "tls": None, "open": False}
"""How a cluster serves that the inventory says nothing of: to its own head alone."""


def part_of(inventory: Inventory, names: Sequence[str]) -> Inventory:
    """Return the inventory of some nodes, which keep their settings and their addresses.

    Where the first of them is not the whole inventory's head, the endpoint is on its loopback: the
    address, key and certificate of `serve` are the head's.

    Args:
        names: of the nodes; the first one becomes the head.
    """
    head, *workers = names
    nodes = {
        name: replace(inventory.nodes[name], role="head" if name == head else "worker")
        for name in names
    }
    groups = {name: members & set(names) for name, members in inventory.groups.items()}
    groups |= {"head": frozenset({head}), "worker": frozenset(workers)}
    serve = inventory.serve
    if head != inventory.head.name:
        serve = serve.model_copy(update=PRIVATE)
    return replace(inventory, nodes=nodes, groups=groups, serve=serve)
