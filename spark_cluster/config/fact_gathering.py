"""The gathering of facts: one question to a node's agent, and the facts from its answer.

Netplan's files are read on the laptop, by the YAML library; a file of the user's is never written.
The rules are those of netplan(5): a file in /run hides one of the same name in /etc, and that one
in /lib; files are merged in the order of their names, addresses are added up, and of other keys the
last one counts.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from ipaddress import IPv4Interface
from pathlib import Path
from typing import Any

from spark_cluster.config.facts import (
    Facts,
    GivenAddress,
    Gpu,
    GpuProcess,
    Hca,
    Interface,
    Memory,
    NetplanDefinition,
    NetplanFiles,
)
from spark_cluster.config.ports import EPHEMERAL
from spark_cluster.config.yamlfile import Key, Sourced, parse, table_beside
from spark_cluster.errors import InvalidFile
from spark_cluster.node import nvidia_smi, paths
from spark_cluster.node.replies import decoded, objects_of
from spark_cluster.resources.authorized_key import KEY_TYPES, fields_of

# Parsers of what a node's tools and files say; each takes text and bears what is missing.


def kind_of(blob: bytes) -> str:
    """The kind that a public key names itself."""
    size = int.from_bytes(blob[:4], "big")
    return blob[4 : 4 + size].decode(errors="replace")


def is_key(kind: str, text: str) -> bool:
    """Return whether `KIND BASE64` is a complete key of a known kind that matches its content."""
    try:
        blob = base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        return False
    return kind in KEY_TYPES and is_whole(kind, blob)


def is_whole(kind: str, blob: bytes) -> bool:
    """Return whether a key is of the kind that its line says, and not truncated."""
    wanted = KEY_TYPES.get(kind) or (4 if kind.startswith("sk-") else 3)
    return len(fields_of(blob) or ()) == wanted and kind_of(blob) == kind


def key_values(text: str) -> dict[str, str]:
    """`KEY="value"` lines; of a key that comes twice the last one counts."""
    found = {}
    for line in text.split("\n"):
        key, equals, value = line.partition("=")
        if equals and re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", key.strip()):
            found[key.strip()] = value.strip().strip("\"'")
    return found


def os_name(text: str) -> str:
    """`ubuntu 24.04` of /etc/os-release."""
    values = key_values(text)
    return f"{values.get('ID', '')} {values.get('VERSION_ID', '')}".strip()


def dgx_version(text: str | None) -> str | None:
    """The version of /etc/dgx-release: OTA blocks are appended, the last one counts."""
    values = key_values(text or "")
    return values.get("DGX_OTA_VERSION") or values.get("DGX_SWBUILD_VERSION")


def meminfo(text: str) -> Memory:
    """/proc/meminfo, KiB."""
    found = {
        m[1]: int(m[2]) for m in re.finditer(r"^(\w+):\s+([0-9]{1,15}) kB$", text, re.MULTILINE)
    }
    names = ("MemTotal", "MemAvailable", "Cached")
    total, available, cached = (found.get(name, 0) for name in names)
    return Memory(total, available, cached)


def compute_apps(text: str) -> tuple[GpuProcess, ...]:
    """`nvidia-smi --query-compute-apps=pid,process_name,used_gpu_memory --format=csv[,...]`.

    With or without header and units; idle is an empty text. A memory figure that is not reported
    becomes None.
    """
    return tuple(GpuProcess(*row) for row in nvidia_smi.processes(text))


def gpu(text: str) -> Gpu | None:
    """Return the GPU in a bare line of `--query-gpu` with the fields that `sources.toml` asks for.

    The last two, of its memory, may be missing.
    """
    cells = [cell.strip() for cell in text.partition("\n")[0].split(",")]
    if len(cells) < 6:
        return None
    name, compute_cap, driver, *figures = cells
    temperature, power, clock = (nvidia_smi.number(cell) for cell in figures[:3])
    memory = _own_memory(*figures[3:5]) if len(figures) >= 5 else None
    return Gpu(name, compute_cap, driver, temperature, power, clock, memory)


def _own_memory(used: str, free: str) -> Memory | None:
    """Return the memory of a GPU that has its own; None for `[N/A]`, as a GB10 says.

    CUDA has what is used and free; `memory.total` has what the driver keeps for itself, too (0.6 of
    140.4 GiB; source: measured-on-h200).

    Args:
        used, free: MiB.
    """
    found = [re.fullmatch(r"([0-9]{1,9})(?: MiB)?", cell) for cell in (used, free)]
    held, left = (1024 * int(cell[1]) if cell else None for cell in found)
    return None if held is None or left is None else Memory(held + left, left, of_gpu=True)


def ibdev2netdev(text: str) -> tuple[Hca, ...]:
    """`rocep1s0f1 port 1 ==> enp1s0f1np1 (Up)`; the order of rows varies."""
    rows = re.findall(r"^(\S+) port \d+ ==> (\S+) \((\w+)\)", text, re.MULTILINE)
    return _in_order(Hca(name, interface, state == "Up") for name, interface, state in rows)


def rdma_link(text: str) -> tuple[Hca, ...]:
    """`link rocep1s0f1/1 state ACTIVE physical_state LINK_UP netdev enp1s0f1np1`."""
    rows = re.findall(r"^link (\S+)/\d+ state (\w+) .*\bnetdev (\S+)", text, re.MULTILINE)
    return _in_order(Hca(name, interface, state == "ACTIVE") for name, state, interface in rows)


def rdma_devices(text: str) -> tuple[Hca, ...]:
    """Return the RDMA devices, whichever of the two programs has printed them."""
    return ibdev2netdev(text) or rdma_link(text)


def _in_order(hcas: Iterable[Hca]) -> tuple[Hca, ...]:
    return tuple(sorted(hcas, key=lambda hca: hca.interface.lower()))


def ip_addr(text: str) -> tuple[Interface, ...]:
    """`ip -j addr`."""
    return tuple(_interface(row) for row in objects_of(decoded(text)) if row.get("ifname"))


def _interface(row: dict[str, object]) -> Interface:
    """Return an interface; addresses that are none are left out, an MTU that is none is 0."""
    flags, infos, mtu = row.get("flags"), row.get("addr_info"), row.get("mtu", 1500)
    addresses = (_address(info) for info in infos) if isinstance(infos, list) else ()
    return Interface(
        name=str(row["ifname"]),
        mac=str(row.get("address", "")),
        mtu=mtu if isinstance(mtu, int) else 0,
        up=isinstance(flags, list) and "UP" in flags and "LOWER_UP" in flags,
        addresses=tuple(address for address in addresses if address is not None),
    )


def _address(info: object) -> IPv4Interface | None:
    if not isinstance(info, dict) or info.get("family") != "inet" or "local" not in info:
        return None
    with contextlib.suppress(ValueError):
        address = IPv4Interface(f"{info['local']}/{info.get('prefixlen', 32)}")
        return None if address.ip.is_link_local else address
    return None


def dpkg(text: str) -> dict[str, str]:
    """Lines of package, version, status (and want), by tabs: the installed ones with version."""
    rows = (line.split("\t") for line in text.splitlines())
    return {row[0]: row[1] for row in rows if len(row) > 2 and row[2] == "installed"}


def dpkg_held(text: str) -> tuple[str, ...]:
    """Return the packages whose fourth word is `hold`, from the same lines."""
    rows = (line.split("\t") for line in text.splitlines())
    return tuple(sorted(row[0] for row in rows if len(row) > 3 and row[3] == "hold"))


def public_keys(texts: Iterable[str]) -> tuple[str, ...]:
    """`TYPE BASE64` of public key files, sorted; what is no whole key is left out.

    The files are the node's own, and what they hold goes into known_hosts and authorized_keys.
    """
    words = (text.split() for text in texts)
    return tuple(sorted(f"{w[0]} {w[1]}" for w in words if len(w) > 1 and is_key(w[0], w[1])))


def gid_indexes(files: Mapping[str, str]) -> dict[str, int]:
    """Device to index of its first RoCE v2 entry with an IPv4 address, from the files of sysfs.

    Args:
        files: path below `/sys/class/infiniband/DEVICE/ports/1/` to text: `gids/N` is
            `0000:...:ffff:c0a8:b10b`, `gid_attrs/types/N` is `RoCE v2`.
    """
    found: dict[str, int] = {}
    for path, gid in files.items():
        place = re.match(r"(.*/infiniband/([^/]+)/ports/1)/gids/([0-9]{1,5})$", path)
        if place is None or not gid.strip().startswith("0000:0000:0000:0000:0000:ffff:"):
            continue
        if files.get(f"{place[1]}/gid_attrs/types/{place[3]}", "").strip() == "RoCE v2":
            found[place[2]] = min(int(place[3]), found.get(place[2], int(place[3])))
    return found


def port_range(text: str) -> tuple[int, int]:
    """First and last port of net.ipv4.ip_local_port_range; the kernel's default without one."""
    found = re.fullmatch(r"\s*([0-9]{1,5})\s+([0-9]{1,5})\s*", text)
    ports = (int(found[1]), int(found[2])) if found else EPHEMERAL
    return ports if max(ports) < 1 << 16 else EPHEMERAL


def ssh_ports(config: str, sockets: str) -> tuple[int, ...]:
    """Ports at which sshd is to listen.

    Not those at which a process of that name does listen: so does the session of whoever has a
    port forwarded to them.

    Args:
        config: what `sshd -T` printed.
        sockets: what `systemctl show --property=Listen` printed of those that start sshd.
    """
    found = re.findall(r"(?m)^port ([0-9]{1,5})$", config)
    found += re.findall(r"(?m)^listenaddress \S*:([0-9]{1,5})(?: .*)?$", config)
    found += re.findall(r"(?m)^Listen=(?:\S*:)?([0-9]{1,5}) \(Stream\)$", sockets)
    return tuple(sorted({int(port) for port in found if int(port) < 1 << 16}))


LISTENERS = ("ss", "-Hltnp")

EVERYWHERE = ("*", "0.0.0.0", "::")  # noqa: S104

_PROGRAM = re.compile(r'\(\("([^"]+)"(?:,pid=([0-9]{1,10}))?')
_PORT = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True)
class Listener:
    """A port that is listened on.

    Attributes:
        address: without brackets and interface.
        program: empty where `ss` does not say.
        pid: its process; None where `ss` does not say.
    """

    address: str
    port: int
    program: str = ""
    pid: int | None = None

    def __str__(self) -> str:
        name = self.program or "another program"
        return f"{name} (PID {self.pid})" if self.pid is not None else name

    def blocks(self, address: str) -> bool:
        """Return whether no one else can listen on this port of an address."""
        return self.address == address or bool({self.address, address} & {*EVERYWHERE})


def listeners(text: str) -> list[Listener]:
    """Read the output of `ss -Hltnp`; lines of another form are left out."""
    found = []
    for line in text.splitlines():
        words = line.split()
        address, _, port = words[3].rpartition(":") if len(words) > 3 else ("", "", "")
        if _PORT.fullmatch(port) is None:
            continue
        told = _PROGRAM.search(line)
        name, pid = (told[1], told[2]) if told else ("", None)
        at = address.strip("[]").partition("%")[0]
        found.append(Listener(at, int(port), name, int(pid) if pid else None))
    return found


BLOCK = 16 * 2**20
"""Bytes of a large block; a kernel that keeps none of this size is judged by its largest."""

LEAST = 2 * 2**30
"""Bytes in large blocks, below which a load is at risk. Sparks whose loads crawled had 0.1 to 0.9
GiB of 118, 47 after a reboot (source: sparkring-173)."""

HIGH_PRESSURE = 10.0
"""Percent of the last 10 s in which every program waited for memory (PSI, full avg10): a node that
is about to load shows 0, and systemd-oomd ends programs from 60 (source: oomd-conf)."""

_ZONE = re.compile(r"^Node +\d+, +zone +\S+((?: +\d{1,15})+) *$", re.MULTILINE)


@dataclass(frozen=True)
class FreeBlocks:
    """The free memory of a node, bytes.

    Attributes:
        free: all of it.
        large: what is in blocks of `size` and more.
        size: of a large block.
    """

    free: int
    large: int
    size: int

    @property
    def fragmented(self) -> bool:
        """Whether large blocks are so few that a load is at risk."""
        return self.large < LEAST

    def __str__(self) -> str:
        return (
            f"{self.large / 2**30:.1f} of {self.free / 2**30:.1f} GiB free memory in blocks of "
            f"{self.size / 2**20:g} MiB or more"
        )


def free_blocks(text: str, page_size: int) -> FreeBlocks | None:
    """Read /proc/buddyinfo: column N counts free blocks of `page_size * 2**N` bytes.

    Args:
        page_size: of the node's kernel, bytes: 4096, or 65536 of an arm64 kernel with 64k pages.

    Returns:
        None where the text has no zone.

    >>> free_blocks("Node 0, zone   Normal      2      0      1", 8 * 2**20)
    FreeBlocks(free=50331648, large=33554432, size=16777216)
    """
    zones = [[int(word) for word in found[1].split()] for found in _ZONE.finditer(text)]
    if not zones:
        return None
    orders = max(map(len, zones))
    sizes = [page_size << order for order in range(orders)]
    size = next((one for one in sizes if one >= BLOCK), sizes[-1])
    pairs = [pair for zone in zones for pair in zip(zone, sizes, strict=False)]
    free = sum(count * one for count, one in pairs)
    return FreeBlocks(free, sum(count * one for count, one in pairs if one >= size), size)


NETPLAN_FOLDERS = ("/lib/netplan", "/etc/netplan", "/run/netplan")
"""A file hides one of the same name in a folder before its own."""

MANAGED = "# Managed by spark-cluster"
"""How the files begin that roles write."""

LONGEST_NETPLAN, MOST_NETPLAN = 64 * 1024, 64
"""Characters of one file, where a few hundred are usual, and files of a node, which has a few."""

CONNECTX = "mlx5_core"
"""The driver of a ConnectX-7's interfaces."""

_TRUE = ("true", "yes", "on", "y")
_GROUPS = ("bonds", "bridges")


def netplan_files(
    files: Mapping[str, str], interfaces: Sequence[Interface], connectx: Collection[str] = ()
) -> NetplanFiles:
    """Return what netplan files give the interfaces of a node; whatever a node sends, none raises.

    Args:
        files: path to text.
        interfaces: those of the node.
        connectx: names of the ConnectX-7's interfaces.
    """
    sources: list[Sourced] = []
    unreadable = []
    paths = _in_force(files)
    for number, path in enumerate(paths):
        try:
            if number >= MOST_NETPLAN:
                raise InvalidFile(f"not read: {MOST_NETPLAN} files come before it", where=path)
            if len(files[path]) > LONGEST_NETPLAN:
                raise InvalidFile(f"longer than {LONGEST_NETPLAN} characters", where=path)
            if files[path].strip():
                sources.append(parse(files[path], Path(path), "netplan file", lenient=True))
        except InvalidFile as error:
            unreadable.append(f"{error.where}: {error.message.splitlines()[0]}")
    own = tuple(path for path in paths if files[path].startswith(MANAGED))
    matched = _matched(sources, interfaces, connectx)
    found = [d for source in sources for d in _definitions(source, matched, own)]
    return NetplanFiles(tuple(found), tuple(paths), own, tuple(unreadable))


def _in_force(files: Mapping[str, str]) -> list[str]:
    """Return the paths that netplan reads, in its order."""
    found: dict[str, str] = {}
    for folder in NETPLAN_FOLDERS:
        found.update({name: path for path in files if (name := _name_in(folder, path))})
    return [found[name] for name in sorted(found)]


def _name_in(folder: str, path: str) -> str:
    """Return the name of a file directly in a folder; empty for another one."""
    name = path.removeprefix(f"{folder}/")
    return "" if name == path or "/" in name else name


def _matched(
    sources: Iterable[Sourced], interfaces: Sequence[Interface], connectx: Collection[str]
) -> dict[str, list[str]]:
    """Return each definition's id with the interfaces that it configures.

    Its `match` may be in another file than its addresses.
    """
    merged: dict[str, dict[str, Any]] = {}
    for source in sources:
        for name, body in _kind(source, "ethernets").items():
            merged.setdefault(name, {}).update(_mapping(body))
    return {
        name: [one.name for one in interfaces if _is_for(name, body, one, connectx)]
        for name, body in merged.items()
    }


def _definitions(
    source: Sourced, matched: Mapping[str, Sequence[str]], own: Collection[str]
) -> Iterator[NetplanDefinition]:
    """Yield what one file says of each interface."""
    path = str(source.path)
    ethernets = _kind(source, "ethernets")
    found: dict[str, tuple[Key, str]] = {
        name: (("network", "ethernets", name), "") for name in ethernets
    }
    for kind in _GROUPS:
        for group, body in _kind(source, kind).items():
            for member in _items(_mapping(body).get("interfaces")):
                found[str(member)] = (("network", kind, group), f"{kind.removesuffix('s')} {group}")
    for name, (key, member_of) in found.items():
        body = _mapping(ethernets.get(name))
        names = matched.get(name, [name])
        for interface in names:
            yield NetplanDefinition(
                file=path,
                line=source.origin(key).line,
                id=name,
                interface=interface,
                shared=len(names) > 1,
                ours=path in own,
                addresses=tuple(_addresses(source, key, body)),
                keys=tuple(body),
                dhcp4=_is_true(body.get("dhcp4")),
                mtu=body["mtu"] if type(body.get("mtu")) is int else None,
                member_of=member_of,
            )


def _kind(source: Sourced, kind: str) -> Mapping[str, Any]:
    """Return the definitions of a kind, such as `ethernets`."""
    return _mapping(_mapping(source.data.get("network")).get(kind))


def _is_for(
    name: str, body: Mapping[str, Any], interface: Interface, connectx: Collection[str]
) -> bool:
    """Return whether a definition configures an interface: by its name, or by `match`."""
    if "match" not in body:
        return interface.name == name
    have = {
        "name": interface.name,
        "macaddress": interface.mac,
        "driver": CONNECTX if interface.name in connectx else "",
    }
    return all(
        any(_fits(have.get(what, ""), str(pattern), what) for pattern in _items(patterns))
        for what, patterns in _mapping(body["match"]).items()
    )


def _fits(value: str, pattern: str, what: str) -> bool:
    """Return whether a value fits a pattern of `match`; that of a MAC address is none."""
    if what == "macaddress":
        return value.lower() == pattern.lower()
    return fnmatchcase(value, pattern)


def _addresses(source: Sourced, key: Key, body: Mapping[str, Any]) -> Iterator[GivenAddress]:
    """Yield the IPv4 addresses of a definition: text, or a mapping of an address to its options."""
    for place, item in enumerate(_items(body.get("addresses"))):
        text = next(iter(item), "") if isinstance(item, dict) else item
        with contextlib.suppress(ValueError):
            yield GivenAddress(
                IPv4Interface(str(text)), source.origin((*key, "addresses", place)).line
            )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _items(value: Any) -> Sequence[Any]:
    """Return a list as it is, and another value as a list of it."""
    if value is None:
        return ()
    return value if isinstance(value, list) else (value,)


def _is_true(value: object) -> bool:
    """Return whether netplan reads a value as true (`yes` and `on` are text in YAML 1.2)."""
    return value is True or str(value).lower() in _TRUE


COMPUTE_APPS = nvidia_smi.APPS
NETPLAN = {f"netplan {folder}": f"{folder}/*.yaml" for folder in NETPLAN_FOLDERS}

SOURCES: Mapping[str, Mapping[str, Any]] = {
    **table_beside(__file__, "fact_sources.toml"),
    "mesh_key": {"path": f"{paths.MESH_KEY}.pub"},
    **{name: {"tree": glob} for name, glob in NETPLAN.items()},
}
"""What the facts are made of, by name; see the file."""

COMMANDS = {
    name: tuple(tuple(each) if isinstance(each, list) else each for each in source["argv"])
    for name, source in SOURCES.items()
    if "argv" in source
}
FILES, TREES = (
    {name: str(source[kind]) for name, source in SOURCES.items() if kind in source}
    for kind in ("path", "tree")
)
MEMORY = {"commands": {"apps": COMPUTE_APPS}, "files": {"meminfo": "/proc/meminfo"}}
"""The question for `vram`: who holds GPU memory, and what the whole node has."""


def question() -> dict[str, Any]:
    """Return the request for the agent's `gather`."""
    return {"commands": COMMANDS, "files": FILES, "trees": TREES}


def facts(answer: Mapping[str, Any]) -> Facts:
    """The facts in an agent's answer to `question()`."""
    files = {name: (answer["files"].get(name) or "").strip() for name in FILES}
    commands, trees, machine = answer["commands"], answer.get("trees", {}), answer["machine"]
    packages = (commands.get("dpkg") or {"stdout": ""})["stdout"]
    gpu_found, nvml_error = _gpu(answer)
    interfaces, hcas = ip_addr(output_of(commands, "ip")), _hcas(answer)
    configured = _netplan(trees, interfaces, hcas)
    return Facts(
        hostname=machine["hostname"],
        os=os_name(files["os"]),
        kernel=machine["kernel"],
        arch=machine["arch"],
        python=machine["python"],
        cpus=machine["cpus"],
        boot_id=files["boot_id"],
        machine_id=files["machine_id"],
        memory=meminfo(files["meminfo"]),
        disk_total_bytes=machine["disk_total"],
        disk_free_bytes=machine["disk_free"],
        gpu=gpu_found,
        nvml_error=nvml_error,
        dgx_version=dgx_version(files["dgx"]),
        interfaces=interfaces,
        hcas=hcas,
        docker=output_of(commands, "docker").strip() or None,
        packages=dpkg(packages),
        held=dpkg_held(packages),
        cmdline=files["cmdline"],
        reboot_required=answer["files"].get("reboot_required") is not None,
        host_keys=public_keys(trees.get("host_keys", {}).values()),
        mesh_key=next(iter(public_keys([files["mesh_key"]])), ""),
        local_ports=port_range(files["local_ports"]),
        ssh_ports=ssh_ports(output_of(commands, "sshd"), output_of(commands, "ssh_sockets")),
        given_addresses=tuple(
            given.address for d in configured.definitions if d.ours for given in d.addresses
        ),
        netplan=configured,
    )


def _netplan(
    trees: Mapping[str, Mapping[str, str]], interfaces: Sequence[Interface], hcas: Sequence[Hca]
) -> NetplanFiles:
    files = {path: text for name in NETPLAN for path, text in trees.get(name, {}).items()}
    return netplan_files(files, interfaces, {hca.interface for hca in hcas})


def _gpu(answer: Mapping[str, Any]) -> tuple[Gpu | None, str]:
    """Return the GPU, and what nvidia-smi says where it fails or hangs; empty where it answers."""
    smi = answer["commands"].get("gpu")
    if smi is not None and smi["status"] != 0:
        return None, (smi["stdout"] + smi["stderr"]).strip()
    return gpu(output_of(answer["commands"], "gpu")), str(answer.get("late", {}).get("gpu", ""))


def _hcas(answer: Mapping[str, Any]) -> tuple[Hca, ...]:
    """Return the RDMA devices, each with the index of its GID for RoCE v2."""
    shown, trees = output_of(answer["commands"], "hcas"), answer.get("trees", {})
    gids = gid_indexes({k: v for name in TREES for k, v in trees.get(name, {}).items()})
    return tuple(replace(hca, gid_index=gids.get(hca.name)) for hca in rdma_devices(shown))


def memory(answer: Mapping[str, Any]) -> tuple[tuple[GpuProcess, ...] | None, Memory]:
    """Processes and memory in an answer to `MEMORY`; None when nvidia-smi does not answer."""
    apps = answer["commands"]["apps"]
    known = apps is not None and apps["status"] == 0
    processes = compute_apps(apps["stdout"]) if known else None
    return processes, meminfo(answer["files"]["meminfo"] or "")


def output_of(commands: Mapping[str, Any], name: str) -> str:
    """Return what a command of an answer has printed; empty where it failed or was not there."""
    done = commands.get(name)
    return str(done["stdout"]) if done is not None and done["status"] == 0 else ""
