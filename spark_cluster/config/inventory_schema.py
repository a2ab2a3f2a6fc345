"""The schema of an inventory file and the checks between its fields; `inventory.py` is what the
program uses.
"""

from __future__ import annotations

import ipaddress
import ssl
import stat
from collections.abc import Collection, Iterator
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

from spark_cluster.config.ports import LAST_PORT
from spark_cluster.config.schema import (
    Address,
    Bind,
    EnvName,
    HostName,
    Jump,
    LaptopPath,
    NodePath,
    Port,
    Schema,
    Subnet,
    UserName,
    Word,
    is_ip,
)
from spark_cluster.config.secret import OptionalSecret
from spark_cluster.config.yamlfile import MAX_BYTES, Key, Problem, did_you_mean, read_foreign
from spark_cluster.errors import UsageError

SELF_SIGNED = "self-signed"
_EXPECTED = "expected self-signed, or {certificate: FILE, key: FILE}"


class Tls(Schema):
    """A certificate of the user's, or one that is made on the node."""

    self_signed: bool = False
    """make one on the node"""
    certificate: LaptopPath | None = None
    """PEM file on the laptop: the certificate, then its chain"""
    key: LaptopPath | None = None
    """PEM file on the laptop: the private key, for its owner only"""

    @model_validator(mode="after")
    def _both(self) -> Tls:
        files = [file for file in (self.certificate, self.key) if file is not None]
        if len(files) != (0 if self.self_signed else 2):
            raise ValueError(_EXPECTED)
        return self

    def read(self) -> str | None:
        """PEM text of certificate and private key; None for one that is made on the node.

        Raises:
            UsageError: a file cannot be read, others can read the key, it has a passphrase, or it
                is another certificate's.
        """
        if self.certificate is None or self.key is None:
            return None
        certificate, key = _text(self.certificate), _text(self.key)
        mode = stat.S_IMODE(self.key.stat().st_mode)
        if mode & 0o077:
            raise UsageError(
                f"serve.tls.key: others can read {self.key} (mode {mode:04o})",
                hint=f"chmod 600 {self.key}",
            )
        if "ENCRYPTED" in key:
            raise UsageError(
                f"serve.tls.key: {self.key} has a passphrase, which cannot be entered at boot",
                hint="openssl pkey writes one without it",
            )
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key)
        except (ssl.SSLError, ValueError) as error:
            raise UsageError(
                f"serve.tls: {self.certificate} and {self.key} are not a certificate and its key: "
                f"{getattr(error, 'reason', None) or error}",
                hint="both must be PEM text, and belong together",
            ) from None
        return f"{certificate.strip()}\n{key.strip()}\n"


def _text(path: Path) -> str:
    try:
        return read_foreign(path, MAX_BYTES, "PEM text").decode("ascii")
    except OSError as error:
        raise UsageError(f"serve.tls: {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"serve.tls: {path} is not PEM text") from None


def _tls(value: Any) -> Any:
    if value is None or value == "none":
        return None
    if value == SELF_SIGNED:
        return {"self_signed": True}
    if isinstance(value, Tls | dict):
        return value
    raise ValueError(f"found {value!r}, {_EXPECTED}")


OptionalTls = Annotated[
    Tls | None,
    BeforeValidator(_tls, json_schema_input_type=Tls | Literal["self-signed", "none"] | None),
]
"""`self-signed`, `{certificate: FILE, key: FILE}` or `none`."""


NodeRole = Literal["head", "worker"]
RoleSettings = dict[Word, dict[str, Any]]


class SshEntry(Schema):
    """The SSH settings of nodes. What is not given is taken from the user's ~/.ssh/config."""

    user: UserName | None = None
    """user to log in as; sudo makes it root"""
    port: Port | None = None
    """port of sshd"""
    identity_file: LaptopPath | None = None
    """private key on the laptop"""
    known_hosts: LaptopPath | None = None
    """file with the nodes' host keys"""
    jump: Jump | None = None
    """jump host, [user@]host[:port]"""
    connect_timeout_s: float | None = Field(default=None, gt=0, le=600)
    """longest wait for a connection, seconds (default 10)"""


class FabricInterface(Schema):
    """A ConnectX-7 network interface (a twin) and its address."""

    name: str = Field(min_length=1, max_length=15)
    """interface name such as enp1s0f1np1"""
    address: IPv4Interface
    """address with prefix such as 192.168.177.11/24"""
    configure: bool = True
    """whether spark-cluster gives it the address; false where it has it by the node's own
    configuration"""


class FabricEntry(Schema):
    """The link of one node, given by hand."""

    interfaces: list[FabricInterface] = Field(min_length=1, max_length=4)
    """the twins that carry the link, in order"""


def _detect_or_entry(value: Any) -> Any:
    """`detect` is None inside, so that a typo in the mapping is reported as one."""
    if value == "detect":
        return None
    if isinstance(value, str):
        raise ValueError(f"found {value!r}, expected 'detect' or {{interfaces: [...]}}")
    return value


class NodeEntry(SshEntry):
    """A node: one Spark."""

    address: Address
    """management address: an IP address or a host name"""
    connection: Literal["ssh", "local"] = "ssh"
    """how it is reached: local where it is the machine on which spark-cluster runs"""
    namespaces_of: LaptopPath | None = None
    """with connection: local, a file with the number of a process of this machine, whose namespaces
    are the node: a container, or a node of `lab up --gpus`"""
    roles: list[NodeRole] = Field(default=[], max_length=1)
    """[head] or [worker]; worker when not given"""
    fabric: Annotated[
        FabricEntry | None,
        BeforeValidator(
            _detect_or_entry, json_schema_input_type=FabricEntry | Literal["detect"] | None
        ),
    ] = None
    """'detect', or {interfaces: [{name, address}, ...]}"""
    settings: RoleSettings = Field(default={})
    """settings of roles on this node"""


def _recipe_or_entry(value: Any) -> Any:
    """A recipe's name alone is an entry without more."""
    return {"recipe": value} if isinstance(value, str) else value


class ModelEntry(Schema):
    """One of several models that are served next to each other."""

    recipe: str = Field(min_length=1)
    """name or path of a recipe"""
    aliases: list[Annotated[str, Field(min_length=1)]] = Field(default=[])
    """further names by which clients may ask for it"""
    node: HostName | None = None
    """node that it is served on (default: the head)"""
    on_request: bool = False
    """load it when it is asked for, and unload it when another one needs the memory; only on the
    head"""


MODELS_AT_MOST = 8
"""Models next to each other: each has a port of its own, from `engine_port` on."""


class ServeEntry(Schema):
    """The recipe to serve, or several next to each other, and who can reach them."""

    list_is: ClassVar[str] = "recipes"

    recipe: str | None = Field(default=None, min_length=1)
    """name or path of a recipe"""
    recipes: list[
        Annotated[
            ModelEntry,
            BeforeValidator(_recipe_or_entry, json_schema_input_type=ModelEntry | str),
        ]
    ] = Field(default=[], max_length=MODELS_AT_MOST)
    """several recipes instead of one, served next to each other behind one endpoint: names, or
    {recipe, aliases, node, on_request}"""
    bind: Bind = "loopback"
    """address of the endpoint: the head's loopback, its management address, or another IPv4 address
    of its own"""
    port: Port = 8000
    """port of the endpoint on the head"""
    api_key: OptionalSecret = None
    """key that requests must carry: {env: NAME}, {file: PATH} or none"""
    allow_files: list[LaptopPath] = Field(default=[])
    """files and folders of the laptop that recipes may have sent to the nodes, in addition to those
    next to the recipe and in the project"""
    allow_env: list[EnvName] = Field(default=[])
    """variables of the laptop's environment that recipes may have given to their containers"""
    allow_mounts: list[NodePath] = Field(default=[])
    """folders of the nodes that recipes may write to, in addition to the caches of their image and
    the folder of models (/srv/models)"""
    allow_venv: bool = False
    """recipes may run their engine outside a container (runtime: venv), as root on the nodes"""
    allow_build: bool = False
    """commands of recipes may run as root in the build of their image, without a network
    (image.build)"""
    allow_build_network: bool = False
    """such commands may also fetch something from the network"""
    open: bool = False
    """serve off the loopback without an api_key: anyone on that network may use it"""
    tls: OptionalTls = None
    """HTTPS: self-signed, {certificate: FILE, key: FILE} or none"""
    engine_port: Port = 18000
    """vLLM's own port on the head's loopback, when a proxy has the endpoint's: off the loopback,
    with an api_key, with tls, or with replicas, which have it on the fabric; of several models the
    first one's, the others have the ports after it"""

    @model_validator(mode="after")
    def _one_or_several(self) -> ServeEntry:
        if self.recipe is not None and self.recipes:
            raise ValueError("found recipe and recipes; give one of them")
        if len(self.recipes) == 1:
            raise ValueError("found 1 entry, expected at least 2; for one, give recipe: NAME")
        return self

    @property
    def recipe_names(self) -> tuple[str, ...]:
        """The names of all recipes that are served."""
        if self.recipe is not None:
            return (self.recipe,)
        return tuple(entry.recipe for entry in self.recipes)

    @property
    def on_loopback(self) -> bool:
        """True if only the head itself can reach the endpoint."""
        return self.bind == "loopback"

    @property
    def proxied(self) -> bool:
        """True if there is a reverse proxy in front of vLLM."""
        guarded = self.api_key is not None or self.tls is not None
        return guarded or not self.on_loopback or bool(self.recipes)

    @property
    def engine_ports(self) -> range:
        """The ports of the servers behind the proxy: one for each model."""
        return range(self.engine_port, self.engine_port + max(1, len(self.recipes)))


def _list_or_entry(value: Any) -> Any:
    """A list alone is that of the recipes."""
    return {ServeEntry.list_is: value} if isinstance(value, list) else value


class FabricPoolEntry(Schema):
    """Addresses of the link between the nodes, for nodes that say `fabric: detect`."""

    pool: list[Subnet] = Field(
        default=[IPv4Network("192.168.177.0/24"), IPv4Network("192.168.178.0/24")],
        min_length=1,
        max_length=4,
    )
    """one subnet for each twin"""
    mtu: int = Field(default=9000, ge=1280, le=9216)
    """MTU of the link, bytes; the same on all nodes"""


class BecomeEntry(Schema):
    """The way in which the login user becomes root."""

    method: Literal["sudo"] = "sudo"
    """program that becomes root"""
    password: OptionalSecret = None
    """sudo password: {env: NAME}, {file: PATH}, prompt or none"""


class InventoryFile(Schema):
    """The whole file."""

    ssh: SshEntry = SshEntry()
    """defaults of all nodes"""
    nodes: dict[HostName, NodeEntry] = Field(min_length=1)
    """the Sparks, by name"""
    groups: dict[Word, list[str]] = Field(default={})
    """names for several nodes"""
    serve: Annotated[
        ServeEntry,
        BeforeValidator(_list_or_entry, json_schema_input_type=ServeEntry | list[ModelEntry | str]),
    ] = ServeEntry()
    """what is served; a list is short for {recipes: [...]}"""
    fabric: FabricPoolEntry = FabricPoolEntry()
    """the link's addresses"""
    trusted_network: bool = False
    """serve without a firewall around Ray and vLLM's ranks: whoever reaches the nodes can then run
    anything there as root"""
    become: BecomeEntry = BecomeEntry()
    """how to become root"""
    settings: RoleSettings = Field(default={})
    """settings of roles on all nodes"""
    group_settings: dict[str, RoleSettings] = Field(default={})
    """settings of roles on the nodes of a group"""


# The checks between the fields of an inventory, beyond each field on its own.

FIRST_HOST = 11
"""Host part of the first node's link address, where `fabric: detect` chooses it."""

_IMPLIED = ("all", "head", "worker")


def check(entry: InventoryFile) -> list[Problem]:
    """Every problem between the fields; empty when the inventory is sound."""
    return [
        *_names(entry),
        *_roles(entry),
        *_addresses(entry),
        *_connections(entry),
        *_serve(entry),
        *_models(entry),
        *_groups(entry),
        *_pool(entry),
        *_interfaces(entry),
        *_subnets(entry),
    ]


def unknown_role_settings(entry: InventoryFile, roles: Collection[str]) -> list[Problem]:
    """Settings for roles that do not exist: nothing would read them."""
    layers: dict[Key, dict[str, Any]] = {("settings",): entry.settings}
    for group, given in entry.group_settings.items():
        layers["group_settings", group] = given
    for name, node in entry.nodes.items():
        layers["nodes", name, "settings"] = node.settings
    return [
        Problem((*layer, role), f"no role '{role}'; {did_you_mean(role, roles, 'roles')}")
        for layer, given in layers.items()
        for role in given
        if role not in roles
    ]


def _names(entry: InventoryFile) -> Iterator[Problem]:
    for name in entry.nodes:
        if name in _IMPLIED:
            yield Problem(
                ("nodes", name), f"'{name}' is a built-in group; give the node another name"
            )


def _roles(entry: InventoryFile) -> Iterator[Problem]:
    heads = [name for name, node in entry.nodes.items() if "head" in node.roles]
    lone = len(entry.nodes) == 1 and not next(iter(entry.nodes.values())).roles
    if not heads and not lone:
        first = next(iter(entry.nodes))
        yield Problem(
            ("nodes",), f"no node is the head; give one of them (say {first}) roles: [head]"
        )
    for name in heads[1:]:
        yield Problem(("nodes", name, "roles"), f"a second head; '{heads[0]}' is the head already")


def _addresses(entry: InventoryFile) -> Iterator[Problem]:
    seen: dict[tuple[str, int | None], str] = {}
    for name, node in entry.nodes.items():
        # Behind one address, ports may lead to different nodes (forwarded, or a jump host's).
        reached = (_one_spelling(node.address), node.port or entry.ssh.port)
        if reached in seen:
            yield Problem(
                ("nodes", name, "address"),
                f"found '{node.address}', which is the address of '{seen[reached]}' already",
            )
        seen.setdefault(reached, name)


def _connections(entry: InventoryFile) -> Iterator[Problem]:
    """One node at most is this machine, and SSH settings of its own would have no effect."""
    local = [name for name, node in entry.nodes.items() if node.connection == "local"]
    here = [name for name in local if entry.nodes[name].namespaces_of is None]
    for name in here[1:]:
        message = (
            f"two nodes cannot be this machine; '{here[0]}' has connection: local already "
            "(namespaces_of makes a node of a container)"
        )
        yield Problem(("nodes", name, "connection"), message)
    yield from _namespaces(entry)
    for name in local:
        for setting in sorted(entry.nodes[name].model_fields_set & SshEntry.model_fields.keys()):
            yield Problem(
                ("nodes", name, setting), f"{setting} is for SSH, and connection is local"
            )


def _namespaces(entry: InventoryFile) -> Iterator[Problem]:
    """Namespaces are entered on this machine only, and each node has its own."""
    seen: dict[object, str] = {}
    for name, node in entry.nodes.items():
        if node.namespaces_of is None:
            continue
        at: Key = ("nodes", name, "namespaces_of")
        if node.connection != "local":
            yield Problem(at, "namespaces_of is for connection: local, and connection is ssh")
        if node.namespaces_of in seen:
            yield Problem(at, f"'{seen[node.namespaces_of]}' has the same namespaces already")
        seen.setdefault(node.namespaces_of, name)


def _serve(entry: InventoryFile) -> Iterator[Problem]:
    """The endpoint is open to a network only when the inventory says so."""
    serve = entry.serve
    if serve.api_key is not None and serve.open:
        yield Problem(
            ("serve", "open"),
            "open means without a key, and there is an api_key; take one of them out",
        )
    elif not serve.on_loopback and serve.api_key is None and not serve.open:
        network = "the management" if serve.bind == "management" else f"{serve.bind}'s"
        yield Problem(
            ("serve", "bind"),
            f"anyone on {network} network could use the endpoint; give it an "
            "api_key: {env: SPARK_API_KEY}, or set open: true if that is meant",
        )
    if serve.proxied and serve.port in serve.engine_ports:
        yield Problem(
            ("serve", "engine_port" if "engine_port" in serve.model_fields_set else "port"),
            f"{serve.port} is also vLLM's own port behind the endpoint; take another",
        )


def _models(entry: InventoryFile) -> Iterator[Problem]:
    """Each of several models is there once, and on a node that there is."""
    serve = entry.serve
    seen: set[str] = set()
    for index, model in enumerate(serve.recipes):
        at: Key = ("serve", "recipes", index)
        if model.recipe in seen:
            yield Problem(at, f"'{model.recipe}' is given twice")
        seen.add(model.recipe)
        if model.node is not None and model.node not in entry.nodes:
            advice = did_you_mean(model.node, entry.nodes, "nodes")
            yield Problem((*at, "node"), f"no node '{model.node}'; {advice}")
    if serve.recipes and serve.engine_ports[-1] > LAST_PORT:
        message = f"{len(serve.recipes)} models need as many ports from {serve.engine_port} on"
        yield Problem(("serve", "engine_port"), message)


def _one_spelling(address: str) -> str:
    """The same text for every way to write an address: `fd00::1` is `FD00:0:0:0:0:0:0:1`."""
    if not is_ip(address):
        return address.lower().rstrip(".")
    parsed = ipaddress.ip_address(address)
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


def _groups(entry: InventoryFile) -> Iterator[Problem]:
    for group, members in entry.groups.items():
        if group in _IMPLIED:
            yield Problem(("groups", group), f"'{group}' is a built-in group; leave it out")
        elif group in entry.nodes:
            yield Problem(("groups", group), "has the name of a node")
        for index, name in enumerate(members):
            if name not in entry.nodes:
                advice = did_you_mean(name, entry.nodes, "nodes")
                yield Problem(("groups", group, index), f"no node '{name}'; {advice}")
    for group in entry.group_settings:
        if group not in entry.groups and group not in _IMPLIED:
            advice = did_you_mean(group, [*entry.groups, *_IMPLIED], "groups")
            yield Problem(("group_settings", group), f"no group '{group}'; {advice}")


def _management(entry: InventoryFile) -> dict[str, IPv4Address]:
    addresses = {name: node.address for name, node in entry.nodes.items() if is_ip(node.address)}
    parsed = {name: ipaddress.ip_address(text) for name, text in addresses.items()}
    return {name: ip for name, ip in parsed.items() if isinstance(ip, IPv4Address)}


def _overlap(entry: InventoryFile, network: IPv4Network, key: Key) -> Iterator[Problem]:
    for name, address in _management(entry).items():
        if address in network:
            yield Problem(
                key, f"{network} holds the management address of '{name}' ({address}); take another"
            )
            return


def _fits(network: IPv4Network, nodes: int) -> bool:
    return FIRST_HOST + nodes - 1 <= network.num_addresses - 2


def _pool(entry: InventoryFile) -> Iterator[Problem]:
    if len(entry.nodes) == 1 or all(node.fabric is not None for node in entry.nodes.values()):
        return  # nothing takes an address from the pool
    pool = entry.fabric.pool
    for index, network in enumerate(pool):
        key: Key = ("fabric", "pool", index)
        if not _fits(network, len(entry.nodes)):
            yield Problem(
                key,
                f"{network} is too small for {len(entry.nodes)} nodes from host {FIRST_HOST} on",
            )
        for other in pool[:index]:
            if network.overlaps(other):
                yield Problem(key, f"{network} overlaps {other}; each twin needs its own subnet")
        yield from _overlap(entry, network, key)


def _explicit(entry: InventoryFile) -> Iterator[tuple[str, Key, list[IPv4Interface]]]:
    for name, node in entry.nodes.items():
        if node.fabric is not None:
            key: Key = ("nodes", name, "fabric", "interfaces")
            yield name, key, [interface.address for interface in node.fabric.interfaces]


def _interfaces(entry: InventoryFile) -> Iterator[Problem]:
    """Each interface on its own, and against the others of its node."""
    for name, key, addresses in _explicit(entry):
        node = entry.nodes[name]
        names = [i.name for i in node.fabric.interfaces] if node.fabric else []
        for index, address in enumerate(addresses):
            at = (*key, index, "address")
            network = address.network
            if names[index] in names[:index]:
                yield Problem((*key, index, "name"), f"'{names[index]}' is given twice")
            if network.prefixlen > 30 or address.ip in (
                network.network_address,
                network.broadcast_address,
            ):
                yield Problem(at, f"found {address}, which is not a host address of a subnet")
            for other in addresses[:index]:
                if network.overlaps(other.network):
                    yield Problem(
                        at,
                        f"{address} is in the subnet of {other}; "
                        "the two twins of a port need different subnets",
                    )
            yield from _overlap(entry, network, at)


def _subnets(entry: InventoryFile) -> Iterator[Problem]:
    """The same twin is in the same subnet on every node, with an address of its own."""
    seen: dict[IPv4Address, str] = {}
    detected = [n for n, node in entry.nodes.items() if node.fabric is None]
    first_name = f"fabric.pool (node '{detected[0]}')" if detected else ""
    expected: list[IPv4Network] = list(entry.fabric.pool) if detected else []
    if detected:
        for index, name in enumerate(entry.nodes):
            if name in detected:
                hosts = [n[FIRST_HOST + index] for n in expected if _fits(n, index + 1)]
                seen.update(dict.fromkeys(hosts, name))
    for name, key, addresses in _explicit(entry):
        networks = [address.network for address in addresses]
        if not expected:
            expected, first_name = networks, f"node '{name}'"
        elif len(networks) != len(expected):
            yield Problem(key, f"found {len(networks)}, but {first_name} has {len(expected)}")
        for index, address in enumerate(addresses):
            at = (*key, index, "address")
            if index < len(expected) and networks[index] != expected[index]:
                yield Problem(
                    at, f"{address} is not in {expected[index]}, the subnet of {first_name}"
                )
            if address.ip in seen:
                yield Problem(at, f"{address.ip} is an address of '{seen[address.ip]}' already")
            seen.setdefault(address.ip, name)
