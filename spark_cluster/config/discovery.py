"""Finding Sparks: what is announced on the local network, and who is at the end of a cable.

DGX OS runs avahi-daemon, which announces `_ssh._tcp` there: NVIDIA's own script that connects two
Sparks finds them by it (source: discover-sparks). Answers are multicast on the local link and
anyone there can send them: they are proposals for a person to look at, never a proof. Of neighbour
tables only what the system knows already is read; no range of addresses is tried.

The fabric ports of a Spark have link-local addresses at best, which lead nowhere from the laptop.
What the first node hears by mDNS on these ports gives the other's host name, and the same name
announced on another port its management address (`peers`).
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooLate
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, ip_address, ip_network
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ifaddr

from spark_cluster.config import fact_gathering
from spark_cluster.config.fact_gathering import output_of
from spark_cluster.config.inventory import Inventory, checked
from spark_cluster.config.project import Project
from spark_cluster.config.schema import is_ip
from spark_cluster.config.topology import render
from spark_cluster.config.yamlfile import Sourced, load, parse
from spark_cluster.errors import InvalidFile, UsageError, naming
from spark_cluster.node.durable import write_file
from spark_cluster.node.replies import decoded, objects_of

if TYPE_CHECKING:
    from zeroconf import ServiceInfo


SERVICE = "_ssh._tcp.local."

LISTEN_S = 3.0
"""Seconds to listen for answers: responders wait up to 0.12 s, and a question is asked three times
within the first 2.5 s (RFC 6762, sections 5.2 and 6)."""

ASKED_AT_ONCE = 64
"""Names that are looked up at a time: anyone can announce some of which nothing is answered."""

HOST_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", re.IGNORECASE)

COUNT = re.compile(r"-\d+$")
"""What avahi puts behind a name that is taken: `spark1`, `spark1-2`, `spark1-3` (source:
avahi-docs-alternative)."""


@dataclass(frozen=True, slots=True)
class Announced:
    """A machine that announces SSH.

    Attributes:
        host: its host name, without `.local`.
        addresses: IPv4, as announced.
        port: of its sshd.
    """

    host: str
    addresses: tuple[str, ...]
    port: int = 22


def browse(seconds: float, interface: str | None = None) -> list[Announced]:
    """Ask the local network once, and collect the answers.

    Args:
        interface: the address of one interface of this machine; None asks on all of them.

    Raises:
        UsageError: this machine cannot send multicast questions.
    """
    from zeroconf import Error, InterfaceChoice, IPVersion, ServiceBrowser, Zeroconf

    names: set[str] = set()
    what = "the local network cannot be searched for Sparks"
    with naming(UsageError, what, hint="name them: --nodes ADDRESS[,ADDRESS]"):
        asked = Zeroconf(
            interfaces=[interface] if interface else InterfaceChoice.Default,
            ip_version=IPVersion.V4Only,
        )
    with contextlib.closing(asked):
        browser = ServiceBrowser(asked, SERVICE, handlers=[lambda **of: names.add(of["name"])])
        until = time.monotonic() + seconds
        found: dict[str, Future[ServiceInfo | None]] = {}

        def resolve(name: str) -> ServiceInfo | None:
            left = round(1000 * (until - time.monotonic()))
            with contextlib.suppress(Error):  # of a name that is none
                return asked.get_service_info(SERVICE, name, timeout=left) if left > 0 else None
            return None

        with ThreadPoolExecutor(ASKED_AT_ONCE) as pool:
            while (left := until - time.monotonic()) > 0:
                found |= {name: pool.submit(resolve, name) for name in names - found.keys()}
                time.sleep(min(0.1, left))
        browser.cancel()
    infos = filter(None, (one.result() for one in found.values()))
    return sorted(filter(None, map(_announced, infos)), key=lambda one: one.host)


def _announced(info: ServiceInfo) -> Announced | None:
    """Return what is announced; None where it is no host name or no address that could be used."""
    host = (info.server or "").rstrip(".").removesuffix(".local")
    addresses = tuple(sorted(a for a in info.parsed_addresses() if usable(a)))
    if not HOST_NAME.fullmatch(host) or not addresses:
        return None
    return Announced(host.lower(), addresses, info.port or 22)


def usable(text: str) -> bool:
    """Return whether it is an IPv4 address of a machine next to this one."""
    try:
        address = IPv4Address(text)
    except ValueError:
        return False
    return not (address.is_multicast or address.is_unspecified or address.is_reserved)


def networks() -> list[IPv4Network]:
    """Return the IPv4 networks that this machine is part of."""

    return [
        ip_network(f"{ip.ip}/{ip.network_prefix}", strict=False)  # type: ignore[misc]
        for adapter in ifaddr.get_adapters()
        for ip in adapter.ips
        if ip.is_IPv4
    ]


def nearest(addresses: Sequence[str], local: Sequence[IPv4Network]) -> str | None:
    """Return the address that is in a network of this machine, link-local ones last; None when
    none is: what is announced on the local network is not to lead elsewhere.
    """
    here = [a for a in addresses if any(IPv4Address(a) in network for network in local)]
    return min(here, key=lambda a: IPv4Address(a).is_link_local, default=None)


READ_S = 5.0
"""Seconds that reading the table may take."""

NVIDIA = ("4c:bb:47",)
"""Beginnings of the hardware addresses of a Spark's own ports (IEEE: NVIDIA). Others of NVIDIA's
machines, such as Jetsons, have them too."""

_ARP = re.compile(r"\((?P<address>[\d.]+)\) at (?P<mac>[0-9a-f:]+) on (?P<interface>\S+)")


@dataclass(frozen=True, slots=True)
class Neighbour:
    """An entry of a neighbour table: IP address, interface, hardware address."""

    address: str
    interface: str
    mac: str

    @property
    def is_nvidia(self) -> bool:
        """True if its network card is one of NVIDIA's."""
        return self.mac.startswith(NVIDIA)


def of_this_machine() -> list[Neighbour]:
    """Return the IPv4 neighbours of this machine; none where its tools do not tell."""
    if shutil.which("ip"):
        return ip_neigh(_output("ip", "-j", "-4", "neigh"))
    if shutil.which("arp"):
        return arp(_output("arp", "-an"))
    return []


def _output(*argv: str) -> str:
    try:
        done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=READ_S)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout


def ip_neigh(text: str) -> list[Neighbour]:
    """Read what `ip -j neigh` of iproute2 prints, IPv6 included; entries that did not answer are
    left out.
    """
    return [
        Neighbour(str(entry["dst"]), str(entry.get("dev", "")), str(entry["lladdr"]).lower())
        for entry in objects_of(decoded(text))
        if "lladdr" in entry and "dst" in entry
        and not any(state in str(entry.get("state")) for state in ("FAILED", "INCOMPLETE"))
    ]  # fmt: skip


def arp(text: str) -> list[Neighbour]:
    """Read what `arp -an` prints on macOS, which leaves out leading zeros of hardware addresses."""
    found = [_ARP.search(line) for line in text.splitlines()]
    return [
        Neighbour(entry["address"], entry["interface"], _mac(entry["mac"]))
        for entry in found
        if entry is not None and usable(entry["address"]) and entry["mac"].count(":") == 5
    ]


def _mac(text: str) -> str:
    return ":".join(part.zfill(2) for part in text.split(":"))


COMMANDS: dict[str, Any] = {
    "hcas": fact_gathering.COMMANDS["hcas"],
    "ip": fact_gathering.COMMANDS["ip"],
    "neigh": ("ip", "-j", "neigh"),
    "mdns": ("avahi-browse", "-p", "-r", "-t", SERVICE.removesuffix(".local.")),
}
"""Asked of a node: as root is not needed, and nothing is sent but an mDNS question."""

_OWN = re.compile(r"(lo|docker\d*|br-.*|veth.*|virbr.*|tailscale.*|tun.*)")
"""Interfaces of a node that no other machine is at."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A machine at the other end of a cable.

    Attributes:
        host: its host name; empty when only its hardware address is known.
        address: its management address; None when it is not known.
        mac: hardware address of its port; empty when it is not known.
    """

    host: str
    address: str | None
    mac: str = ""


def peers(answer: Mapping[str, Any]) -> list[Peer]:
    """Return who is at the other end of a node's fabric ports, from its answer to COMMANDS."""
    told = {name: output_of(answer["commands"], name) for name in COMMANDS}
    ports = {hca.interface for hca in fact_gathering.rdma_devices(told["hcas"])}
    own = {str(a.ip) for i in fact_gathering.ip_addr(told["ip"]) for a in i.addresses}
    rows = _resolved(told["mdns"])
    itself = {host for _, host, address in rows if address in own}  # heard back over the cable
    at_cable = sorted({host for interface, host, _ in rows if interface in ports} - itself)
    named = [Peer(host, _management(host, rows, ports)) for host in at_cable]
    if named:
        return named
    macs = {n.mac for n in ip_neigh(told["neigh"]) if n.interface in ports}
    # The two twins of a port have addresses of their own: one machine all the same.
    return [Peer("", None, min(macs))] if macs else []


def _management(host: str, rows: list[tuple[str, str, str]], ports: set[str]) -> str | None:
    return next(
        (
            address
            for interface, name, address in rows
            if name == host and interface not in ports and not _OWN.fullmatch(interface)
        ),
        None,
    )


def _resolved(text: str) -> list[tuple[str, str, str]]:
    """Return interface, host name and IPv4 address of each line that `avahi-browse -p` resolved."""
    found = []
    for line in text.splitlines():
        # =;interface;IPv4;name;type;domain;host.local;address;port;text
        fields = line.split(";")
        if len(fields) < 9 or fields[0] != "=" or fields[2] != "IPv4":
            continue
        host = fields[6].removesuffix(".local").lower()
        if HOST_NAME.fullmatch(host) and usable(fields[7]):
            found.append((fields[1], host, fields[7]))
    return found


MAKERS = (
    "spark", "gx10", "promaxgb10", "thinkstationpgx", "zgx", "edgexpert", "aitopatom", "gn100",
)  # fmt: skip
"""Beginnings of the host names of a GB10: NVIDIA's, ASUS', Dell's, Lenovo's, HP's, MSI's,
Gigabyte's and Acer's; the last four digits are those of its hardware address."""

_SPARK = re.compile(rf"({'|'.join(MAKERS)})-[0-9a-f]{{4}}")

MOST = 2
"""Sparks that are proposed together: more than two need a switch."""

RESOLVE_S = 2.0
"""Seconds that the system may take to find the address of a .local name."""

MOST_RESOLVED = 16
"""Names whose address is looked up, one after the other: anyone can announce some."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A machine that may be a Spark.

    Attributes:
        address: how to reach it: its .local name where this machine resolves that, else IPv4; a
            name that avahi may have counted up does not stay.
        also: its address where that is its name, its name where that is its address.
        why: what tells that it is one.
        named: its host name is that of a Spark, which anyone on the network can announce.
        nvidia: its hardware address is NVIDIA's, as those of other machines of NVIDIA are.
        port: of its sshd.
    """

    address: str
    also: str
    why: str
    named: bool = False
    nvidia: bool = False
    port: int = 22

    @property
    def is_spark(self) -> bool:
        """True if all that can be seen of it is a Spark's."""
        return self.named and self.nvidia


@dataclass(frozen=True, slots=True)
class Discovered:
    """What was found: what may be Sparks, and how many others announce SSH."""

    candidates: tuple[Candidate, ...]
    others: int

    @property
    def obvious(self) -> tuple[Candidate, ...]:
        """All that were found, where each is a Spark and they can be used together; else none."""
        fits = len(self.candidates) <= MOST and all(one.is_spark for one in self.candidates)
        return self.candidates if fits else ()


def is_spark_name(host: str) -> bool:
    """Return whether a host name is one that a Spark has from its maker, counted up or not."""
    return _is_makers(host) or _is_makers(COUNT.sub("", host))


def _is_makers(host: str) -> bool:
    return _SPARK.fullmatch(host.lower()) is not None


def candidates(
    announced: Sequence[Announced],
    neighbours: Sequence[Neighbour],
    local: Sequence[IPv4Network],
    resolves: Callable[[str, str], bool] | None = None,
) -> Discovered:
    """Put together what was announced and what the neighbour tables list.

    Args:
        local: networks of this machine; other addresses are not believed.
        resolves: whether this machine finds that address by that name.
    """
    resolves = resolves or resolves_to
    nvidia = {neighbour.address: neighbour.mac for neighbour in neighbours if neighbour.is_nvidia}
    found, others, seen = list[Candidate](), 0, set[str]()
    for one in announced:
        address = nearest(one.addresses, local)
        if address in seen:
            continue
        seen.update(one.addresses)
        named = is_spark_name(one.host)
        card = any(address in nvidia for address in one.addresses)
        if address is None or not (named or card):
            others += 1
            continue
        name = f"{one.host}.local"
        counted = COUNT.search(one.host) is not None and not _is_makers(one.host)
        why = "announced by mDNS" + (", NVIDIA network card" if card else "")
        why += ", perhaps renamed by avahi" if counted else ""
        by_name = not counted and len(found) < MOST_RESOLVED and resolves(name, address)
        both = (name, address) if by_name else (address, one.host)
        found.append(Candidate(*both, why, named, card, one.port))
    for address, mac in sorted(nvidia.items()):
        if address not in seen and nearest([address], local):
            found.append(Candidate(address, mac, "NVIDIA network card", nvidia=True))
    found.sort(key=lambda one: (not one.nvidia, not one.named))
    return Discovered(tuple(found), others)


def resolves_to(name: str, address: str) -> bool:
    """Return whether this machine's resolver finds the address by the name, soon enough."""
    pool = ThreadPoolExecutor(1)
    try:
        infos = pool.submit(socket.getaddrinfo, name, 22, socket.AF_INET).result(RESOLVE_S)
    except (OSError, TooLate):
        return False
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return address in {info[4][0] for info in infos}


# The inventory of a new project: written only if it can be read back.

DEFAULT_RECIPE = "gemma4-31b-nvfp4"


@dataclass(frozen=True, slots=True)
class Answers:
    """The user's answers.

    Args:
        addresses: of the Sparks, the head first.
        user: to log in as; None leaves it to ~/.ssh/config.
        identity_file: private key on the laptop; None leaves it to ssh.
        recipe: the name of what to serve.
        port: of the nodes' sshd; None leaves it to ~/.ssh/config.
        sudo_password: where sudo's password comes from: `prompt`, or the name of an environment
            variable; None where sudo asks for none.
        passwordless_sudo: `provision` lets the user use sudo without a password.
    """

    addresses: tuple[str, ...]
    user: str | None = None
    identity_file: str | None = None
    recipe: str = DEFAULT_RECIPE
    port: int | None = None
    sudo_password: str | None = None
    passwordless_sudo: bool = False


def answers_in(path: Path) -> Answers | None:
    """Return the answers that the inventory at `path` was written from; None when its user has
    changed it since, so that it is not ours to write again.

    Raises:
        InvalidFile: it is no inventory.
    """
    data = load(path, "inventory").data
    try:
        ssh, nodes = data.get("ssh") or {}, data["nodes"].values()
        source = (data.get("become") or {}).get("password")
        settings = data.get("settings") or {}
        found = Answers(
            tuple(str(node["address"]) for node in nodes),
            ssh.get("user"),
            ssh.get("identity_file"),
            data["serve"]["recipe"],
            ssh.get("port"),
            source["env"] if isinstance(source, dict) else source,
            bool((settings.get("bootstrap") or {}).get("passwordless_sudo")),
        )
        return found if _text(found) == path.read_text(encoding="utf-8") else None
    except (AttributeError, KeyError, TypeError):
        return None


def _text(answers: Answers) -> str:
    return render(
        Path(__file__).parent / "templates",
        "inventory.yaml.j2",
        addresses=[_scalar(address) for address in answers.addresses],
        user=_scalar(answers.user),
        identity_file=_scalar(answers.identity_file),
        port=answers.port,
        recipe=_scalar(answers.recipe),
        sudo_password=answers.sudo_password,
        passwordless_sudo=answers.passwordless_sudo,
        pool=_pool(answers.addresses),
    )


def write(path: Path, answers: Answers, project: Project) -> Inventory:
    """Write the inventory of these answers, once its text has been read as an inventory.

    Raises:
        UsageError: an answer does not fit, or the file cannot be written; `path` is untouched.
    """
    project.find("recipes", answers.recipe)
    text = _text(answers)
    try:
        inventory = checked(parse(text, path, "inventory"))
    except InvalidFile as error:
        # The lines are those of a file that is not written: name the fields only.
        raise UsageError("these nodes cannot be used:\n  " + _without_lines(error)) from None
    with naming(UsageError, f"{path} cannot be written"):
        write_file(path, text.encode(), 0o644)
    return inventory


def source_of(addresses: Sequence[str]) -> Sourced:
    """Return the data of an inventory for nodes of which only the addresses are known.

    Args:
        addresses: `HOST` or `USER@HOST`, the head first; they are named spark1, spark2 and so on.

    Raises:
        UsageError: there is none, or one of them twice.
    """
    if not addresses or len(set(addresses)) < len(addresses):
        raise UsageError(
            f"addresses of the nodes: found {', '.join(addresses) or 'none'}, expected one or more "
            "different ones",
            hint="give each node's address once, the head first",
        )
    nodes: dict[str, dict[str, Any]] = {}
    for number, text in enumerate(addresses, 1):
        user, _, host = text.rpartition("@")
        nodes[f"spark{number}"] = {"address": host, **({"user": user} if user else {})}
    nodes["spark1"]["roles"] = ["head"]
    pool = _pool(tuple(str(node["address"]) for node in nodes.values()))
    return Sourced(Path("addresses"), {"nodes": nodes, "fabric": {"pool": pool}})


def _without_lines(error: InvalidFile) -> str:
    file = error.where.rpartition(":")[0]
    lines = [error.message.splitlines()[0]]
    for line in error.message.splitlines()[1:]:
        lines.append(line.removeprefix(f"{file}:").partition(": ")[2])
    return "\n  ".join(lines)


def _scalar(text: str | None) -> str | None:
    """Text as YAML: plain where it is harmless, in quotes otherwise."""
    if text is None or (text and all(c.isalnum() or c in "._/~-" for c in text)):
        # `12` or `true` would be read as something else than text.
        plain = text is None or not (text.isdigit() or text.lower() in ("true", "false", "null"))
        return text if plain else json.dumps(text)
    return json.dumps(text)


def _pool(addresses: tuple[str, ...]) -> list[str]:
    """Two subnets for the link that hold none of the management addresses."""
    taken = [ip_address(address) for address in addresses if is_ip(address)]
    pool: list[str] = []
    for third in (177, 178, 187, 188, 197, 198):
        subnet = ip_network(f"192.168.{third}.0/24")
        if not any(ip in subnet for ip in taken if ip.version == 4):
            pool.append(str(subnet))
    return pool[:2]
