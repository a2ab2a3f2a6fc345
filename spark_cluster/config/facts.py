"""The typed facts of one node."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Interface

from spark_cluster.config.document import WhenSet
from spark_cluster.config.ports import EPHEMERAL


@dataclass(frozen=True)
class Memory:
    """The memory, from /proc/meminfo, KiB. On a Spark this is the GPU's memory too.

    Attributes:
        cached_kib: the page cache; available to programs, but not to CUDA before it is dropped.
        of_gpu: it is a GPU's own, as nvidia-smi reports it, and nothing else lives in it.
    """

    total_kib: int = 0
    available_kib: int = 0
    cached_kib: int = 0
    of_gpu: bool = False


@dataclass(frozen=True)
class Gpu:
    """The GPU, as nvidia-smi reports it.

    Attributes:
        temperature_c: degrees Celsius; None when not reported.
        power_w: watts; None when not reported.
        sm_clock_mhz: MHz; None when not reported.
        memory: its own; None when not reported, as of a Spark, whose memory is unified.
    """

    name: str
    compute_cap: str
    driver: str
    temperature_c: float | None = None
    power_w: float | None = None
    sm_clock_mhz: float | None = None
    memory: Memory | None = None

    @property
    def shares_memory(self) -> bool:
        """Whether its memory is the machine's, as that of a Spark's GB10 is."""
        return re.search(r"\bGB10\b", self.name) is not None


@dataclass(frozen=True)
class Interface:
    """A network interface.

    Attributes:
        up: has carrier and is up.
        mtu: bytes.
        addresses: IPv4 addresses with their prefix, link-local ones left out.
    """

    name: str
    mac: str = ""
    mtu: int = 1500
    up: bool = False
    addresses: tuple[IPv4Interface, ...] = ()


@dataclass(frozen=True)
class Hca:
    """An RDMA device (one twin of a ConnectX-7 port) and its network interface.

    Attributes:
        gid_index: of its RoCE v2 entry for IPv4, which differs by node and drifts; None when it
            has none (no IPv4 address on the interface).
    """

    name: str
    interface: str
    up: bool
    gid_index: int | None = None


@dataclass(frozen=True)
class GivenAddress:
    """An IPv4 address with its prefix, and the line of a netplan file that gives it."""

    address: IPv4Interface
    line: int


@dataclass(frozen=True)
class NetplanDefinition:
    """What a netplan file gives an interface.

    Attributes:
        file, line: the place of the definition.
        id: its name in netplan; the interface's unless it has `match`.
        interface: the interface that it configures.
        shared: it configures other interfaces of the node, too.
        ours: a role of ours has written the file.
        keys: all that it sets.
        dhcp4: it asks for an address by DHCP.
        mtu: bytes; None when it sets none.
        member_of: the bond or bridge that the interface belongs to, such as `bond bond0`.
    """

    file: str
    line: int
    id: str
    interface: str
    shared: bool = False
    ours: bool = False
    addresses: tuple[GivenAddress, ...] = ()
    keys: tuple[str, ...] = ()
    dhcp4: bool = False
    mtu: int | None = None
    member_of: str = ""

    @property
    def where(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(frozen=True)
class NetplanFiles:
    """The netplan files of a node.

    Attributes:
        definitions: in the order in which netplan merges them.
        paths: of the files that netplan reads, in its order.
        own: the files that a role of ours has written.
        unreadable: `FILE:LINE: reason` of files that are not valid YAML.
    """

    definitions: tuple[NetplanDefinition, ...] = ()
    paths: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()

    def of_others(self, interface: str) -> tuple[NetplanDefinition, ...]:
        """Return what files other than our own give an interface."""
        return tuple(d for d in self.definitions if d.interface == interface and not d.ours)

    def given(self, interface: str) -> tuple[IPv4Interface, ...]:
        """Return the addresses that files other than our own give an interface alone."""
        return tuple(
            given.address
            for d in self.of_others(interface)
            if not d.shared
            for given in d.addresses
        )


@dataclass(frozen=True)
class Process:
    """A process that holds GPU memory, as `nvidia-smi --query-compute-apps` lists it (MiB).

    Attributes:
        model: that it serves, where several are served and `vram` asks; otherwise empty.
    """

    pid: int
    name: str
    used_mib: int | None
    model: WhenSet[str] = ""


@dataclass(frozen=True)
class Facts:
    """The current facts of a node.

    Attributes:
        os: `ID VERSION_ID` of /etc/os-release, e.g. `ubuntu 24.04`.
        dgx_version: last OTA (or software build) version of DGX OS; None on another system.
        nvml_error: what nvidia-smi said instead of answering, or that it hangs.
        docker: version of the running daemon; None when there is none (or it may not be asked).
        packages: installed packages that roles decide by (`sources.toml`), name to version.
        held: those of them that apt must not change (`apt-mark hold`).
        cmdline: how the kernel was started.
        reboot_required: a package has asked for a reboot.
        host_keys: the node's SSH host keys, `TYPE BASE64`, as read over the verified connection.
        mesh_key: the public key with which it logs in to the other nodes; empty before there is.
        disk_free_bytes: of the root file system.
        local_ports: first and last of the ports that the kernel picks by itself.
        ssh_ports: TCP ports at which sshd is to listen, by itself or through systemd.
        given_addresses: those that our own netplan file gives, in force or not.
        netplan: what the node's netplan files say.
    """

    hostname: str = ""
    os: str = ""
    kernel: str = ""
    arch: str = ""
    python: str = ""
    cpus: int = 0
    boot_id: str = ""
    machine_id: str = ""
    memory: Memory = field(default_factory=Memory)
    disk_total_bytes: int = 0
    disk_free_bytes: int = 0
    gpu: Gpu | None = None
    nvml_error: str = ""
    dgx_version: str | None = None
    interfaces: tuple[Interface, ...] = ()
    hcas: tuple[Hca, ...] = ()
    docker: str | None = None
    packages: dict[str, str] = field(default_factory=dict)
    held: tuple[str, ...] = ()
    cmdline: str = ""
    reboot_required: bool = False
    host_keys: tuple[str, ...] = ()
    mesh_key: str = ""
    local_ports: tuple[int, int] = EPHEMERAL
    ssh_ports: tuple[int, ...] = ()
    given_addresses: tuple[IPv4Interface, ...] = ()
    netplan: NetplanFiles = field(default_factory=NetplanFiles)

    def interface(self, name: str) -> Interface | None:
        return next((i for i in self.interfaces if i.name == name), None)

    @property
    def gpu_memory(self) -> Memory:
        """The memory that a program on the GPU is given: the GPU's own, else the machine's."""
        return (self.gpu.memory if self.gpu else None) or self.memory

    def with_gpu_memory(self, memory: Memory) -> Facts:
        """Return the facts with another `gpu_memory` of the same kind."""
        if memory.of_gpu and self.gpu:
            return replace(self, gpu=replace(self.gpu, memory=memory))
        return replace(self, memory=memory)


BUSY_PERCENT = 50
"""Utilisation from which a GPU is under load."""

LOW_MHZ = 1000
"""SM clock under load below which something is wrong: a GPU with too little power does 500 to 850,
a healthy one about 2400. Sources: muninn-gemma4-26b, public-reports."""

LOW_W = 30
"""Power under load up to which the supply is at fault, not a limit. Sources: as for LOW_MHZ."""

SLOW_MHZ = 1500
"""SM clock under load below which a benchmark's figures are not to be trusted: between the faulty
GPUs and the 2100 MHz to which clocks are capped against sudden power-offs. Sources: as for
LOW_MHZ."""
