"""Breakages of the link: cables, netplan, addresses, what the ConnectX-7 shows."""

from __future__ import annotations

import re
from typing import Any

from spark_cluster.errors import Failed
from spark_cluster.node import paths
from spark_cluster_lab.breakages.model import Breakage, by_state, keep, peer, sh
from spark_cluster_lab.layout import FABRIC, MANAGEMENT
from spark_cluster_lab.node import LabNode

NETPLAN = paths.NETPLAN
FIRST, SECOND = FABRIC
CRAWL = "800mbit burst 256k limit 1m"
"""Slow compared with what the lab's processor does to itself, however busy this machine is."""

FOREIGN = "192.168.177.200/24"


def edit(name: str, pattern: str, replacement: str) -> Breakage:
    """A breakage that changes our netplan file by a pattern, and applies it."""
    what, finds, *probed = EDITS[name]

    def act(node: LabNode) -> None:
        path = keep(node, name, NETPLAN)
        if not path.exists():
            raise Failed(
                f"{NETPLAN} is not there: nothing of the link is configured yet",
                where=node.name,
                hint="spark-cluster -i lab provision",
            )
        text, count = re.subn(pattern, replacement, path.read_text(), flags=re.DOTALL)
        if not count:
            raise Failed(f"{NETPLAN} is not as the role network writes it", where=node.name)
        path.write_text(text)
        apply(node)

    return Breakage(name, what, finds, act, apply, "spark2", probed[0] if probed else ())


EDITS: dict[str, tuple[Any, ...]] = {
    "one-subnet": (
        "both interfaces of the port have addresses in one subnet (netplan)",
        ("link.twins-one-subnet", "pair.subnets"),
    ),
    "twin-without-address": (
        "the second interface has no address (netplan)",
        ("link.twin-address",),
    ),
    "mtu": (
        "the link's MTU is 1500 on this node (netplan)",
        ("pair.mtu", "link.mtu"),
        ("link.full-size-ping",),
    ),
    "other-subnet": (
        "the first interface is in a subnet that the other node does not have (netplan)",
        ("pair.subnets",),
    ),
}


def apply(node: LabNode) -> None:
    """Bring netplan's files into force on the link, and nothing that they no longer say."""
    sh(node, "netplan apply && networkctl reload && networkctl reconfigure $1 $2", *FABRIC)


def overlap(node: LabNode) -> None:
    sh(node, "ip address replace $1 dev $2", FOREIGN, MANAGEMENT)


def no_overlap(node: LabNode) -> None:
    sh(node, "ip address del $1 dev $2 2>/dev/null || true", FOREIGN, MANAGEMENT)


def slow(node: LabNode) -> None:
    for interface in FABRIC:
        sh(node, f"tc qdisc replace dev $1 root tbf rate {CRAWL}", interface)


def full_speed(node: LabNode) -> None:
    for interface in FABRIC:
        sh(node, "tc qdisc del dev $1 root 2>/dev/null || true", interface)


def equal_address(node: LabNode) -> None:
    """The other node's address on the first interface, on this one too."""
    script = "ip -4 -o address show dev $1 scope global | awk '{print $4; exit}'"
    address = sh(peer(node), script, FIRST).strip()
    if not address:
        raise Failed(f"{FIRST} of the other node has no address", hint="provision first")
    sh(node, "ip address flush dev $1 scope global && ip address add $2 dev $1", FIRST, address)


BREAKAGES = (
    Breakage(
        "cable-out",
        "the QSFP cable is pulled (both nodes lose the link)",
        ("link.port-up",),
        act=lambda node: node.unplug_fabric(),
        undo=lambda node: node.plug_fabric(),
    ),
    Breakage(
        "half-a-cable",
        "one interface of the cabled port has no link",
        ("link.port-up",),
        act=lambda node: node.unplug_fabric(SECOND),
        undo=lambda node: node.plug_fabric(SECOND),
    ),
    by_state(
        "connectx-gone",
        "the ConnectX-7 is off the bus",
        ("link.connectx-present",),
        connectx_present=False,
    ),
    by_state("rate-100g", "a cable for 100G", ("link.rate",), link_speed=100000),
    by_state(
        "pcie-x2",
        "the second controller has two lanes only",
        ("link.pcie-width",),
        pcie_width={"roceP2p1s0f0": 2, "roceP2p1s0f1": 2},
    ),
    by_state("no-roce-v2", "the GID tables have no RoCE v2 entry", ("link.gid",), roce_v2=False),
    by_state(
        "connectx-firmware",
        "mlnx-fw-updater flashed the ConnectX-7",
        ("link.firmware", "pair.firmware"),
        firmware="28.47.1088",
    ),
    edit(
        "one-subnet",
        rf"({SECOND}:\s+addresses: \[192\.168\.)178(\.\d+)/",
        r"\g<1>177\g<2>0/",
    ),
    edit("twin-without-address", rf"({SECOND}:\s+addresses: )\[[^]]*\]", r"\g<1>[]"),
    edit("mtu", r"mtu: \d+", "mtu: 1500"),
    edit("other-subnet", rf"({FIRST}:\s+addresses: \[)192\.168\.177\.", r"\g<1>10.77.0."),
    Breakage(
        "equal-address",
        "both nodes have the same address on the first interface",
        ("pair.subnets",),
        act=equal_address,
        undo=apply,
        node="spark2",
    ),
    Breakage(
        "subnet-overlap",
        f"the management network has {FOREIGN} too",
        ("link.subnet-overlap",),
        act=overlap,
        undo=no_overlap,
    ),
    Breakage(
        "slow-link",
        "the link carries 0.8 Gb/s an interface, though all looks healthy (tc)",
        (),
        act=slow,
        undo=full_speed,
        probed=("link.transfer-rate",),
    ),
    Breakage(
        "lan-cable-out",
        "the management cable is pulled: the node cannot be reached",
        ("system.reachable",),
        act=lambda node: node.unplug(),
        undo=lambda node: node.plug(),
        node="spark2",
    ),
)
