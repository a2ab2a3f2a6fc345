"""The Spark at the other end of a Spark's ConnectX-7 cable, asked of the first one.

Its fabric ports have link-local addresses at best, which lead nowhere from the laptop. What the
first node hears by mDNS on these ports gives the other's host name, and the same name announced on
another port its management address.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_cluster.discovery.mdns import HOST_NAME, SERVICE, usable
from spark_cluster.discovery.neighbours import ip_neigh
from spark_cluster.facts import gather, parsers

COMMANDS: dict[str, Any] = {
    "hcas": gather.COMMANDS["hcas"],
    "ip": gather.COMMANDS["ip"],
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
    hcas = _out(answer, "hcas")
    ports = {hca.interface for hca in parsers.ibdev2netdev(hcas) or parsers.rdma_link(hcas)}
    own = {str(a.ip) for i in parsers.ip_addr(_out(answer, "ip")) for a in i.addresses}
    rows = _resolved(_out(answer, "mdns"))
    itself = {host for _, host, address in rows if address in own}  # heard back over the cable
    at_cable = sorted({host for interface, host, _ in rows if interface in ports} - itself)
    named = [Peer(host, _management(host, rows, ports)) for host in at_cable]
    if named:
        return named
    macs = {n.mac for n in ip_neigh(_out(answer, "neigh")) if n.interface in ports}
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


def _out(answer: Mapping[str, Any], name: str) -> str:
    done = answer["commands"].get(name)
    return str(done["stdout"]) if done is not None and done["status"] == 0 else ""
