"""The typed facts of one node, and which kernels and drivers are known to work together."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

from spark_cluster.config.ports import EPHEMERAL
from spark_cluster.config.schema import WhenSet


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
class GpuProcess:
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


# Known-good and known-bad combinations of kernel and driver: data, and what matches a node.


@dataclass(frozen=True)
class KnownBad:
    """A combination that is known not to work.

    Attributes:
        id: of the rule.
        issue: id of the known issue, which has its severity, cause and fix.
        found: what is asked for or runs, with its version.
        install: a package that repairs it after a reboot; empty when none does.
    """

    id: str
    issue: str
    found: str
    install: str = ""


@dataclass(frozen=True)
class Pins:
    """The known combinations of kernel and driver, as in `roles/drivers/pins.json`.

    Attributes:
        sets: pins (package to version) that go together, by the name of the set.
    """

    good: tuple[Mapping[str, Any], ...]
    rules: tuple[Mapping[str, Any], ...]
    sets: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def running(self, facts: Facts) -> list[KnownBad]:
        """Return the known-bad versions among those that a node runs now."""
        shown = f"kernel {facts.kernel}, driver {driver_of(facts) or 'none'}"
        return [_bad(r, shown) for r in self.rules if "pin" not in r and _runs(r, facts)]

    def pinned(self, pins: Mapping[str, str], facts: Facts) -> list[KnownBad]:
        """Return the known-bad versions of those asked for; installed versions do not count."""
        found = []
        for rule in (r for r in self.rules if "pin" in r):
            for package, version in pins.items():
                fits = fnmatchcase(version, rule.get("version", "*"))
                there = facts.packages.get(package) == version
                if fnmatchcase(package, rule["pin"]) and fits and not there:
                    found.append(_bad(rule, f"{package} {version}"))
        return list(dict.fromkeys(found))

    def known_good(self, facts: Facts) -> str | None:
        """The name of the known-good combination that a node runs."""
        return next((str(good["name"]) for good in self.good if _runs(good, facts)), None)


@cache
def load_pins(path: Path) -> Pins:
    """The data in a file."""
    data = json.loads(path.read_text())
    sets = {name: found["pins"] for name, found in data.get("sets", {}).items()}
    return Pins(tuple(data["known_good"]), tuple(data["known_bad"]), sets)


def driver_of(facts: Facts) -> str:
    """The driver's version: what runs, else what is installed; empty when there is none."""
    if facts.gpu is not None:
        return facts.gpu.driver
    names = sorted(name for name in facts.packages if name.startswith("nvidia-driver-"))
    return facts.packages[names[-1]] if names else ""


def awaiting_reboot(pins: Mapping[str, str], facts: Facts) -> list[str]:
    """Pinned packages that are installed but not what runs; a reboot brings them into force."""
    found = []
    for package, version in pins.items():
        installed = facts.packages.get(package)
        if installed is None or not fnmatchcase(installed, version):
            continue
        upstream = installed.rpartition(":")[2]
        kernel = package.removeprefix("linux-image-")
        if package.startswith("nvidia-driver-") and facts.gpu is not None:
            if not upstream.startswith(facts.gpu.driver):
                found.append(f"driver {facts.gpu.driver} runs, {installed} is installed")
        elif kernel != package and kernel[:1].isdigit() and facts.kernel != kernel:
            found.append(f"kernel {facts.kernel} runs, {kernel} is installed")
    return found


def _runs(rule: Mapping[str, Any], facts: Facts) -> bool:
    lacking = rule.get("cmdline_lacks")
    return (
        fnmatchcase(facts.kernel, rule.get("kernel", "*"))
        and fnmatchcase(driver_of(facts), rule.get("driver", "*"))
        and fnmatchcase(facts.nvml_error, rule.get("nvml", "*"))
        and (lacking is None or lacking not in facts.cmdline.split())
    )


def _bad(rule: Mapping[str, Any], found: str) -> KnownBad:
    return KnownBad(rule["id"], rule["issue"], found, rule.get("install", ""))
