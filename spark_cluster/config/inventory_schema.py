"""The schema of an inventory file; `spark_cluster.config.inventory` is what the program uses."""

from __future__ import annotations

import ssl
import stat
from ipaddress import IPv4Interface, IPv4Network
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, model_validator

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
from spark_cluster.errors import UsageError

SELF_SIGNED = "self-signed"
_EXPECTED = "expected self-signed, or {certificate: FILE, key: FILE}"


class Tls(Schema):
    """A certificate of the user's, or one that is made on the node."""

    self_signed: bool = False
    """make one on the node"""
    certificate: Path | None = None
    """PEM file on the laptop: the certificate, then its chain"""
    key: Path | None = None
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
        return path.read_text(encoding="ascii")
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
