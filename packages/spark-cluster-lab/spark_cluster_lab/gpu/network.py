"""The GPU lab's networks: a bridge for management, one for the fabric, and each node's namespace.

The ports are veth pairs. None pretends to be a ConnectX-7: what crosses them are plain sockets.
Where this machine has iptables, nodes reach what it reaches; without it they have no way out.
"""

from __future__ import annotations

import ipaddress
import json
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

from spark_cluster.errors import UsageError
from spark_cluster_lab.gpu import owner
from spark_cluster_lab.gpu.layout import (
    BRIDGE,
    FABRIC,
    FABRIC_BRIDGE,
    GATEWAY,
    MANAGEMENT,
    MTU,
    PREFIX,
    SUBNET,
    GpuLayout,
    GpuNodeLayout,
)
from spark_cluster_lab.machine import which
from spark_cluster_lab.network import (
    IPTABLES,
    default_interface,
    forward,
    ip,
    links,
    namespaces,
    restore_forwarding,
)
from spark_cluster_lab.shell import QUICK_S, output, run

RULE_COMMENT = "spark-cluster-gpu-lab"
TABLES = ("nat", "filter")
NETWORK = f"{SUBNET}.0/{PREFIX}"
ELSEWHERE = ("local", "broadcast", "multicast", "anycast")
"""Kinds of routes that go with an address, whose network has a route of its own."""

NEARLY_ALL = 4
"""Prefixes up to this length are a default route in parts, as VPNs have it."""


def has_firewall() -> bool:
    """Return whether this machine has iptables, with rules of its own or not."""
    return bool(which("iptables") and which("iptables-save"))


def has_way_out() -> bool:
    """Return whether nodes can reach what this machine reaches."""
    return has_firewall() and bool(default_interface())


def rules() -> list[tuple[str, str]]:
    """(table, rule) of what lets nodes reach out, answers in, and what is between them pass.

    Each is inserted above the one before. Nothing else gets in from outside: the machine forwards,
    so whoever is on its network could reach nodes by a route to it. Docker has the firewall see
    what crosses a bridge, too, and drop it. The link needs no such rule: the machine has no address
    there, and so no way into it.
    """
    comment = f"-m comment --comment {RULE_COMMENT}"
    answers = "-m conntrack --ctstate RELATED,ESTABLISHED"
    return [
        ("nat", f"POSTROUTING -s {NETWORK} ! -d {NETWORK} {comment} -j MASQUERADE"),
        ("filter", f"FORWARD -o {BRIDGE} ! -i {BRIDGE} {comment} -j DROP"),
        ("filter", f"FORWARD -i {BRIDGE} {comment} -j ACCEPT"),
        ("filter", f"FORWARD -o {BRIDGE} {answers} {comment} -j ACCEPT"),
        ("filter", f"FORWARD -i {FABRIC_BRIDGE} {comment} -j ACCEPT"),
    ]


def routes() -> list[dict[str, Any]]:
    """Return the machine's routes as `ip -json` prints them, those of all tables."""
    found: list[dict[str, Any]] = json.loads(
        output(["ip", "-json", "-4", "route", "show", "table", "all"]) or "[]"
    )
    return found


def require_free(known: Iterable[Mapping[str, Any]]) -> None:
    """Raises:
    UsageError: the machine has a route into the nodes' network that is not the lab's.
    """
    ours = ipaddress.ip_network(NETWORK)
    for route in known:
        kind, target = route.get("type", "unicast"), route["dst"]
        if target == "default" or kind in ELSEWHERE or route.get("dev") == BRIDGE:
            continue
        theirs = ipaddress.ip_network(target, strict=False)
        if theirs.prefixlen > NEARLY_ALL and theirs.overlaps(ours):
            words = [] if kind == "unicast" else [kind]
            words += [target, *(f"via {route['gateway']}" for _ in range("gateway" in route))]
            words += [f"dev {route['dev']}" for _ in range("dev" in route)]
            raise UsageError(
                f"this machine has a route to {' '.join(words)}, which overlaps {NETWORK}, the "
                "network of nodes with a GPU; expected none",
                hint="free it while the lab is up: `ip route show table all` shows the route, and "
                "the nodes cannot have another network",
            )


def saved_rules(table: str) -> list[str]:
    """Return the GPU lab's rules in a table as `iptables-save` prints them."""
    if which("iptables-save") is None:
        return []
    lines = output(["iptables-save", "-t", table], QUICK_S).splitlines()
    return [line for line in lines if line.startswith("-A") and RULE_COMMENT in line]


def raise_bridges(layout: GpuLayout) -> None:
    """Make both bridges, and the nodes' way out where there can be one."""
    plain = "type bridge forward_delay 0 mcast_snooping 0"
    ip(
        f"link add {BRIDGE} {plain}",
        f"addr add {GATEWAY}/{PREFIX} dev {BRIDGE}",
        f"link set {BRIDGE} up",
        f"link add {FABRIC_BRIDGE} mtu {MTU} {plain}",
        f"link set {FABRIC_BRIDGE} up",
    )
    if has_way_out():
        forward(layout.forwarding, BRIDGE, default_interface())
    if has_firewall():
        for table, rule in rules():
            run([*IPTABLES, "-t", table, "-I", *rule.split()])


def lower_bridges(layout: GpuLayout) -> None:
    """Take away all of the machine's side, however much of it is there."""
    for table in TABLES:
        for rule in saved_rules(table):
            run([*IPTABLES, "-t", table, "-D", *shlex.split(rule)[1:]], check=False)
    restore_forwarding(layout.forwarding)
    for bridge in links() & {BRIDGE, FABRIC_BRIDGE}:
        ip(f"link delete {bridge}")


def attach(node: GpuNodeLayout, *, way_out: bool) -> None:
    """Give a node a new network namespace with both ports, their addresses and routes."""
    detach(node)
    run(["ip", "netns", "add", node.name])
    owner.remember(node.name)
    mac = f"4e:bb:48:00:{node.number:02x}"
    ip(
        f"link add {node.port} type veth peer name {MANAGEMENT} netns {node.name} address {mac}:00",
        f"link set {node.port} master {BRIDGE} up",
        f"link add {node.fabric_port} mtu {MTU} type veth "
        f"peer name {FABRIC} netns {node.name} address {mac}:01 mtu {MTU}",
        f"link set {node.fabric_port} master {FABRIC_BRIDGE} up",
    )
    ip(
        "link set lo up",
        f"addr add {node.address}/{PREFIX} dev {MANAGEMENT}",
        f"addr add {node.fabric_address}/{PREFIX} dev {FABRIC}",
        f"link set {MANAGEMENT} up",
        f"link set {FABRIC} up",
        *([f"route add default via {GATEWAY}"] if way_out else []),
        namespace=node.name,
    )


def detach(node: GpuNodeLayout) -> None:
    """Take a node's network away. The far ends go by name: a namespace alone goes later.

    A namespace of that name that the lab has not made stays.
    """
    present = links()
    for port in (node.port, node.fabric_port):
        if port in present:
            ip(f"link delete {port}")
    if owner.is_ours(node.name):
        run(["ip", "netns", "delete", node.name])
    owner.forget(node.name)


def require_names(nodes: Iterable[GpuNodeLayout]) -> None:
    """Raises:
    UsageError: a node's network namespace is there, and the lab has not made it.
    """
    present = namespaces()
    for node in nodes:
        if node.name in present and not owner.is_ours(node.name):
            raise UsageError(
                f"there is a network namespace {node.name} that the lab of GPUs has not made; "
                "expected none of that name",
                hint=f"`ip netns exec {node.name} ip address` shows what is in it; "
                f"ip netns delete {node.name}",
            )


def leftovers(nodes: Iterable[GpuNodeLayout]) -> list[str]:
    """Return those of the GPU lab's networks that exist on this machine."""
    nodes = list(nodes)
    ports = {port for node in nodes for port in (node.port, node.fabric_port)}
    found = sorted(node.name for node in nodes if owner.is_ours(node.name))
    found += sorted(links() & {BRIDGE, FABRIC_BRIDGE, *ports})
    return found + [f"rule {rule}" for table in TABLES for rule in saved_rules(table)]
