"""The engine's ports are open to the other serving nodes over the fabric only.

A table of our own in nftables, which only drops: what it lets pass still meets the user's own
rules. In force before the engine starts, and at each boot before Docker starts. The ports on which
a node sends copies are in a table of their own, since copies are also made where nothing serves.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from pathlib import Path
from typing import Literal

from spark_cluster.config.ports import Span
from spark_cluster.config.schema import Schema
from spark_cluster.config.topology import Node, render
from spark_cluster.engine.firewall import COPIES_TABLE, DROP_IN, TABLE, UNIT, UNIT_FILE
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.errors import Failed
from spark_cluster.resources import (
    Command,
    Directory,
    File,
    NftTable,
    Package,
    Resource,
    Service,
)

TEMPLATES = Path(__file__).parent / "templates"
TRUST = (
    "without nftables the engine's ports are open to everyone who reaches this node; "
    "`trusted_network: true` in the inventory accepts that"
)


class Settings(Schema):
    """Settings of the role `firewall`; `up` gives all but `allow`."""

    state: Literal["present", "absent", "copies"]
    """absent: whoever reaches the node reaches the engine's ports; copies: the table of the ports
    on which a node sends copies, and nothing else"""
    peers: tuple[str, ...] = ()
    """names of the nodes that serve together; none for one alone"""
    ports: tuple[Span, ...] = ()
    """ports of the engine: first, last"""
    served: tuple[tuple[str, int], ...] = ()
    """nodes and ports of the endpoint and of servers, where only programs of root and of users that
    systemd makes answer"""
    endpoint_port: int | None = None
    """of the endpoint, where the inventory puts it on the network"""
    allow: tuple[int, ...] = ()
    """TCP ports of your own services that stay reachable although they lie in the range from which
    the kernel picks ports (net.ipv4.ip_local_port_range)"""


def role(node: Node, settings: Settings) -> Iterator[Resource]:
    """nftables, the table, and the unit that loads it at boot."""
    if settings.state == "absent":
        yield from _removal()
        return
    if settings.state == "copies":
        yield _copies(node, settings)
        return
    peers = [one for one in node.cluster if one.name in settings.peers and one.name != node.name]
    if peers and not all(one.links for one in (node, *peers)):
        raise Failed("there is no fabric whose ports could be protected", where=node.name)
    _must_not_open_the_engine(node, settings)
    table = NftTable(
        TABLE,
        render(
            TEMPLATES,
            "table.nft.j2",
            fabric=_quoted(link.interface for link in node.links),
            own=_joined(_own(node)),
            peers=_joined(str(link.address.ip) for peer in peers for link in peer.links),
            ports=_joined(_spans(node, settings)),
            served=_joined(str(port) for name, port in settings.served if name == node.name),
            allow=_joined(str(port) for port in _allowed(node, settings)),
        ),
        if_refused=TRUST,
    )
    yield Package("nftables", makes=("command:nft",))
    yield table
    yield Directory(DROP_IN.rsplit("/", 1)[0])
    drop_in = File(DROP_IN, content=render(TEMPLATES, "dropin.j2", file=table.file))
    programs = f"{RAY}.service {SERVER}.service"
    unit_text = render(TEMPLATES, "unit.j2", file=table.file, programs=programs)
    unit = File(UNIT_FILE, content=unit_text)
    yield drop_in
    yield _systemd_reads(drop_in)
    yield unit
    yield Service(UNIT, running=True, enabled=True)


def _copies(node: Node, settings: Settings) -> NftTable:
    """The table of the ports on which a node sends copies: the other nodes of the run reach them,
    from any of their own addresses on the network that these are in."""
    others = [one for one in node.cluster if one.name != node.name]
    fabric = [str(link.address.ip) for one in others for link in one.links]
    elsewhere = {ip for one in others for ip in _management(one)} - set(_management(node))
    v6 = [ip for ip in map(_literal, others) if isinstance(ip, IPv6Address)]
    chains = render(
        TEMPLATES,
        "copies.nft.j2",
        fabric=_quoted(link.interface for link in node.links),
        peers=_joined(fabric),
        elsewhere=_joined(map(str, sorted(elsewhere))),
        networks=_joined(str(ip_network((int(ip), 64), strict=False)) for ip in v6),
        ports=_joined(_shown(settings.ports)),
        allow=_joined(str(port) for port in _allowed(node, settings)),
    )
    # A run of `--tags models` copies, too.
    return NftTable(COPIES_TABLE, chains, tags=("images", "models"))


def _management(node: Node) -> set[IPv4Address]:
    """A node's addresses that are not on the fabric: connections may come from any of them."""
    fabric = {link.interface for link in node.links}
    interfaces = [one for one in node.facts.interfaces if one.name not in fabric]
    found = {address.ip for one in interfaces for address in one.addresses}
    known = _literal(node)
    named = {known} if isinstance(known, IPv4Address) else set()
    return {ip for ip in found | named if not ip.is_loopback}


def _literal(node: Node) -> IPv4Address | IPv6Address | None:
    """Its address in the inventory; None for a name."""
    try:
        return ip_address(node.address)
    except ValueError:
        return None


def _must_not_open_the_engine(node: Node, settings: Settings) -> None:
    """Raise Failed when a port that shall stay open is one of the engine's."""
    for port in settings.allow:
        if any(first <= port <= last for first, last in settings.ports):
            raise Failed(
                f"firewall: allow: {port} is a port of the engine",
                where=node.name,
                hint="give your service another port, or Ray others (`ray:` in the recipe)",
            )


def _removal() -> Iterator[Resource]:
    """Nothing of it is left; for when the engine is gone."""
    yield Service(UNIT, running=False, enabled=False)
    yield File(UNIT_FILE, state="absent")
    drop_in = File(DROP_IN, state="absent")
    yield drop_in
    yield _systemd_reads(drop_in)
    yield NftTable(TABLE, state="absent")
    yield NftTable(COPIES_TABLE, state="absent")


def _systemd_reads(drop_in: File) -> Command:
    """Have systemd take a drop-in of nftables.service without starting or stopping that."""
    title = "read nftables.service's drop-in"
    return Command(title, ("systemctl", "daemon-reload"), when_changed=(drop_in,))


def _own(node: Node) -> list[str]:
    """Every address on the fabric's interfaces, present or to be given."""
    given = [str(link.address.ip) for link in node.links]
    found = [node.facts.interface(link.interface) for link in node.links]
    return given + [str(a.ip) for interface in found if interface for a in interface.addresses]


def _spans(node: Node, settings: Settings) -> list[str]:
    """The engine's own ports, and the range in which the kernel picks the others."""
    return _shown((*settings.ports, node.facts.local_ports))


def _shown(spans: Iterable[Span]) -> list[str]:
    """Return spans as nftables writes them."""
    return [f"{first}" if first == last else f"{first}-{last}" for first, last in _merged(spans)]


def _merged(spans: Iterable[Span]) -> list[Span]:
    """Merge spans so that none overlap, which a set of nftables refuses."""
    found: list[Span] = []
    for first, last in sorted(spans):
        if found and first <= found[-1][1] + 1:
            found[-1] = (found[-1][0], max(last, found[-1][1]))
        else:
            found.append((first, last))
    return found


def _allowed(node: Node, settings: Settings) -> list[int]:
    """Return what stays open of what would be closed: the user's, the endpoint, and always ssh."""
    more = () if settings.endpoint_port is None else (settings.endpoint_port,)
    closed = (*settings.ports, node.facts.local_ports)
    ssh = [p for p in node.facts.ssh_ports if any(first <= p <= last for first, last in closed)]
    return sorted({*settings.allow, *more, *ssh})


def _quoted(names: Iterable[str]) -> str:
    return _joined(f'"{name}"' for name in names)


def _joined(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))
