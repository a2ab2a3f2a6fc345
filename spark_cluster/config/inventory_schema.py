"""The schema of an inventory file; `spark_cluster.config.inventory` is what the program uses."""

from __future__ import annotations

from ipaddress import IPv4Interface, IPv4Network
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from spark_cluster.config.fields import (
    Address,
    Bind,
    EnvName,
    HostName,
    Jump,
    LaptopPath,
    NodePath,
    Port,
    Subnet,
    UserName,
    Word,
)
from spark_cluster.config.schema import Schema
from spark_cluster.config.secret import OptionalSecret
from spark_cluster.config.tls import OptionalTls

NodeRole = Literal["head", "worker"]
RoleSettings = dict[Word, dict[str, Any]]


class SshEntry(Schema):
    """The SSH settings of nodes. What is not given is taken from the user's ~/.ssh/config."""

    user: UserName | None = Field(default=None, description="user to log in as; sudo makes it root")
    port: Port | None = Field(default=None, description="port of sshd")
    identity_file: LaptopPath | None = Field(default=None, description="private key on the laptop")
    known_hosts: LaptopPath | None = Field(
        default=None, description="file with the nodes' host keys"
    )
    jump: Jump | None = Field(default=None, description="jump host, [user@]host[:port]")
    connect_timeout_s: float | None = Field(
        default=None,
        gt=0,
        le=600,
        description="longest wait for a connection, seconds (default 10)",
    )


class FabricInterface(Schema):
    """A ConnectX-7 network interface (a twin) and its address."""

    name: str = Field(min_length=1, max_length=15, description="interface name such as enp1s0f1np1")
    address: IPv4Interface = Field(description="address with prefix such as 192.168.177.11/24")


class FabricEntry(Schema):
    """The link of one node, given by hand."""

    interfaces: list[FabricInterface] = Field(
        min_length=1, max_length=4, description="the twins that carry the link, in order"
    )


def _detect_or_entry(value: Any) -> Any:
    """`detect` is None inside, so that a typo in the mapping is reported as one."""
    if value == "detect":
        return None
    if isinstance(value, str):
        raise ValueError(f"found {value!r}, expected 'detect' or {{interfaces: [...]}}")
    return value


class NodeEntry(SshEntry):
    """A node: one Spark."""

    address: Address = Field(description="management address: an IP address or a host name")
    connection: Literal["ssh", "local"] = Field(
        default="ssh",
        description="how it is reached: local where it is the machine on which spark-cluster runs",
    )
    roles: list[NodeRole] = Field(
        default=[], max_length=1, description="[head] or [worker]; worker when not given"
    )
    fabric: Annotated[
        FabricEntry | None,
        BeforeValidator(
            _detect_or_entry, json_schema_input_type=FabricEntry | Literal["detect"] | None
        ),
    ] = Field(default=None, description="'detect', or {interfaces: [{name, address}, ...]}")
    settings: RoleSettings = Field(default={}, description="settings of roles on this node")


class ServeEntry(Schema):
    """The recipe to serve, and who can reach it."""

    recipe: str | None = Field(default=None, min_length=1, description="name or path of a recipe")
    bind: Bind = Field(
        default="loopback",
        description="address of the endpoint: the head's loopback, its management address, or "
        "another IPv4 address of its own",
    )
    port: Port = Field(default=8000, description="port of the endpoint on the head")
    api_key: OptionalSecret = Field(
        default=None, description="key that requests must carry: {env: NAME}, {file: PATH} or none"
    )
    allow_files: list[LaptopPath] = Field(
        default=[],
        description="files and folders of the laptop that recipes may have sent to the nodes, "
        "in addition to those next to the recipe and in the project",
    )
    allow_env: list[EnvName] = Field(
        default=[],
        description="variables of the laptop's environment that recipes may have given to their "
        "containers",
    )
    allow_mounts: list[NodePath] = Field(
        default=[],
        description="folders of the nodes that recipes may write to, in addition to the "
        "usual ones for data",
    )
    allow_venv: bool = Field(
        default=False,
        description="recipes may run their engine outside a container (runtime: venv), as root "
        "on the nodes",
    )
    allow_build: bool = Field(
        default=False,
        description="scripts of recipes may run as root in the build of their image, without a "
        "network (image.build.steps)",
    )
    allow_build_network: bool = Field(
        default=False, description="such scripts may also fetch something from the network"
    )
    open: bool = Field(
        default=False,
        description="serve off the loopback without an api_key: anyone on that network may use it",
    )
    tls: OptionalTls = Field(
        default=None,
        description="HTTPS: self-signed, {certificate: FILE, key: FILE} or none",
    )
    engine_port: Port = Field(
        default=18000,
        description="vLLM's own port on the head's loopback, when a proxy has the endpoint's: off "
        "the loopback, with an api_key, with tls, or with replicas, which have it on the fabric",
    )

    @property
    def on_loopback(self) -> bool:
        """True if only the head itself can reach the endpoint."""
        return self.bind == "loopback"

    @property
    def proxied(self) -> bool:
        """True if there is a reverse proxy in front of vLLM."""
        return not self.on_loopback or self.api_key is not None or self.tls is not None


class FabricPoolEntry(Schema):
    """Addresses of the link between the nodes, for nodes that say `fabric: detect`."""

    pool: list[Subnet] = Field(
        default=[IPv4Network("192.168.177.0/24"), IPv4Network("192.168.178.0/24")],
        min_length=1,
        max_length=4,
        description="one subnet for each twin",
    )
    mtu: int = Field(
        default=9000, ge=1280, le=9216, description="MTU of the link, bytes; the same on all nodes"
    )


class BecomeEntry(Schema):
    """The way in which the login user becomes root."""

    method: Literal["sudo"] = Field(default="sudo", description="program that becomes root")
    password: OptionalSecret = Field(
        default=None, description="sudo password: {env: NAME}, {file: PATH}, prompt or none"
    )


class InventoryFile(Schema):
    """The whole file."""

    ssh: SshEntry = Field(default=SshEntry(), description="defaults of all nodes")
    nodes: dict[HostName, NodeEntry] = Field(min_length=1, description="the Sparks, by name")
    groups: dict[Word, list[str]] = Field(default={}, description="names for several nodes")
    serve: ServeEntry = Field(default=ServeEntry(), description="what is served")
    fabric: FabricPoolEntry = Field(default=FabricPoolEntry(), description="the link's addresses")
    trusted_network: bool = Field(
        default=False,
        description="serve without a firewall around Ray and vLLM's ranks: "
        "whoever reaches the nodes can then run anything there as root",
    )
    become: BecomeEntry = Field(default=BecomeEntry(), description="how to become root")
    settings: RoleSettings = Field(default={}, description="settings of roles on all nodes")
    group_settings: dict[str, RoleSettings] = Field(
        default={}, description="settings of roles on the nodes of a group"
    )
