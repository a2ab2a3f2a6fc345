"""The lab's networks: a bridge for management, what joins the fabric ports, and nothing else.

Each node has a network namespace. The far end of its management port is on the bridge; the far
ends of its fabric ports are in a namespace of their own. There a bridge for each twin is the cable
between two nodes, and the switch between more. So a cable can be pulled out of sight of the nodes:
of the one between two nodes both ends lose their carrier, of one to a switch that node alone.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path

from spark_cluster.node import durable
from spark_cluster_lab.layout import (
    BRIDGE,
    CABLES,
    FABRIC,
    GATEWAY,
    MANAGEMENT,
    NEIGHBOUR,
    RULE_COMMENT,
    SUBNET,
    UNCABLED,
    Layout,
    NodeLayout,
)
from spark_cluster_lab.shell import QUICK_S, output, run

FABRIC_MTU = 9216
CABLED = 2
"""Nodes that one cable joins; more are on a switch."""

NEIGHBOUR_PORT = "lan-other"
CONF = Path("/proc/sys/net/ipv4/conf")
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
NETNS = Path("/run/netns")
SYS_NET = Path("/sys/class/net")
IPTABLES = ("iptables", "-w", "30")
"""It waits 30 s at most for another program that changes the firewall."""


def ip(*commands: str, namespace: str = "", check: bool = True) -> None:
    """Run several `ip` commands in one process; without `check`, all of them whatever happens."""
    argv = ["ip", *(["-n", namespace] if namespace else []), *([] if check else ["-force"])]
    run([*argv, "-batch", "-"], stdin="\n".join(commands) + "\n", check=check, timeout=QUICK_S)


def namespaces() -> set[str]:
    """Names of the machine's network namespaces. Asks no program: none may be installed yet."""
    return {entry.name for entry in NETNS.iterdir()} if NETNS.is_dir() else set()


def links() -> set[str]:
    """Names of the machine's own network interfaces. Asks no program, as above."""
    return {entry.name for entry in SYS_NET.iterdir()}


def saved_rules(*options: str) -> list[str]:
    """The lab's own firewall rules as `iptables-save` prints them; none without iptables."""
    if not shutil.which("iptables-save"):
        return []
    lines = output(["iptables-save", *options], QUICK_S).splitlines()
    return [line for line in lines if line.startswith("-A") and RULE_COMMENT in line]


def default_interface() -> str:
    """Return the interface of the machine's own default route; empty without one."""
    routes = json.loads(output(["ip", "-json", "-4", "route", "show", "default"]) or "[]")
    return str(routes[0]["dev"]) if routes else ""


# --- the machine's side ----------------------------------------------------------------------


def rules() -> list[tuple[str, str]]:
    """(table, rule) of what lets nodes reach their package mirror, and only that."""
    comment = f"-m comment --comment {RULE_COMMENT}"
    answers = "-m conntrack --ctstate RELATED,ESTABLISHED"
    return [
        ("nat", f"POSTROUTING -s {SUBNET} ! -d {SUBNET} {comment} -j MASQUERADE"),
        ("filter", f"FORWARD -i {BRIDGE} {comment} -j ACCEPT"),
        ("filter", f"FORWARD -o {BRIDGE} {answers} {comment} -j ACCEPT"),
    ]


def raise_bridge(layout: Layout) -> None:
    """Make the bridge, let it reach out, and make the place where the cables are, all plugged."""
    layout.pulled.unlink(missing_ok=True)
    ip(
        f"link add {BRIDGE} type bridge forward_delay 0 mcast_snooping 0",
        f"addr add {GATEWAY}/{SUBNET.split('/')[1]} dev {BRIDGE}",
        f"link set {BRIDGE} up",
    )
    forward(layout.forwarding, BRIDGE, default_interface())
    for table, rule in rules():
        run([*IPTABLES, "-t", table, "-I", *rule.split()])
    run(["ip", "netns", "add", CABLES])
    off = "/proc/sys/net/ipv6/conf/default/disable_ipv6"
    run(["ip", "netns", "exec", CABLES, "sh", "-c", f"[ ! -e {off} ] || echo 1 > {off}"])
    for interface in FABRIC:
        ip(
            f"link add {interface} type bridge forward_delay 0 mcast_snooping 0",
            f"link set {interface} up",
            namespace=CABLES,
        )


def forward(record: Path, bridge: str, outside: str) -> None:
    """Let packets pass between a bridge and the outside; what it was is written down first."""
    (CONF / bridge / "forwarding").write_text("1")
    if not outside:
        return
    setting = CONF / outside / "forwarding"
    if setting.read_text().strip() == "1":
        return
    before = {"boot": BOOT_ID.read_text(), "settings": {outside: setting.read_text().strip()}}
    durable.write_file(record, json.dumps(before).encode())
    setting.write_text("1")


def restore_forwarding(record: Path) -> None:
    """Set back what `forward` has changed, unless the machine has booted since."""
    for interface, value in _settings_before(record).items():
        if (CONF / interface).exists():
            (CONF / interface / "forwarding").write_text(value)
    record.unlink(missing_ok=True)


def _settings_before(record: Path) -> dict[str, str]:
    """Return what `forward` has written down in this boot of the machine; a torn file is none."""
    try:
        before = json.loads(record.read_text())
        same_boot = before["boot"] == BOOT_ID.read_text()
        return dict(before["settings"]) if same_boot else {}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def lower_bridge(layout: Layout) -> None:
    """Take away all of the machine's side, however much of it is there."""
    for table in ("nat", "filter"):
        for rule in saved_rules("-t", table):
            run([*IPTABLES, "-t", table, "-D", *shlex.split(rule)[1:]], check=False)
    restore_forwarding(layout.forwarding)
    detach_neighbour()
    if CABLES in namespaces():
        run(["ip", "netns", "delete", CABLES])
    if BRIDGE in links():
        ip(f"link delete {BRIDGE}")


# --- a node's side ---------------------------------------------------------------------------


def attach(node: NodeLayout) -> None:
    """Give a node a new network namespace with all its ports; cables are in, but without carrier.

    Whatever was set by hand in an earlier one (addresses, rules, tc, sysctls) is gone, as after a
    power cycle.
    """
    detach(node)
    run(["ip", "netns", "add", node.name])
    mac = f"4e:bb:47:00:{node.number:02x}"
    commands = [
        f"link add {node.port} type veth peer name {MANAGEMENT} netns {node.name} address {mac}:00",
        f"link set {node.port} master {BRIDGE}",
    ]
    for index, interface in enumerate((*FABRIC, *UNCABLED), start=1):
        commands.append(
            f"link add {node.cable(interface)} mtu {FABRIC_MTU} netns {CABLES} type veth "
            f"peer name {interface} netns {node.name} address {mac}:{index:02x}"
        )
    ip(*commands)
    ip("link set lo up", namespace=node.name)
    ip(
        *(f"link set {node.cable(interface)} master {interface}" for interface in FABRIC),
        namespace=CABLES,
    )


def detach(node: NodeLayout) -> None:
    """Take a node's network away. The far ends go by name: a namespace alone goes later."""
    if node.port in links():
        ip(f"link delete {node.port}")
    present = namespaces()
    if CABLES in present:
        cables = (*FABRIC, *UNCABLED)
        ip(*(f"link delete {node.cable(i)}" for i in cables), namespace=CABLES, check=False)
    if node.name in present:
        run(["ip", "netns", "delete", node.name])


def detach_neighbour() -> None:
    """Take a test's machine next to the nodes away; its end of the cable goes with it."""
    if NEIGHBOUR in namespaces():
        run(["ip", "netns", "delete", NEIGHBOUR])
    if NEIGHBOUR_PORT in links():
        ip(f"link delete {NEIGHBOUR_PORT}", check=False)


def pulled(layout: Layout) -> set[str]:
    """Ports whose cable is out, by their far ends."""
    return set(layout.pulled.read_text().split()) if layout.pulled.exists() else set()


def set_pulled(layout: Layout, ports: Iterable[str], out: bool) -> None:
    """Pull cables out, or plug them in again; `settle` makes it so."""
    now = pulled(layout) | set(ports) if out else pulled(layout) - set(ports)
    layout.pulled.write_text(" ".join(sorted(now)))


def settle(layout: Layout, nodes: Sequence[NodeLayout]) -> None:
    """Give each port a carrier if its cable is in and there is power at both ends.

    The other end is the other node of two, and a switch, which always has power, of more.
    """
    out = pulled(layout)
    present = links()
    ports = [node.port for node in nodes if node.port in present]
    ip(*(f"link set {port} {'down' if port in out else 'up'}" for port in ports), check=False)
    powered = {node.name for node in nodes if node.powered.exists()}
    alive = powered if len(nodes) > CABLED or len(powered) == CABLED else set()
    ip(
        *(
            f"link set {node.cable(port)} "
            f"{'up' if node.name in alive and node.cable(port) not in out else 'down'}"
            for port in FABRIC
            for node in nodes
        ),
        namespace=CABLES,
        check=False,
    )


def leftovers(nodes: Iterable[NodeLayout]) -> list[str]:
    """Return those of the lab's networks that exist on this machine."""
    found = sorted(namespaces() & {CABLES, NEIGHBOUR, *(node.name for node in nodes)})
    found += sorted(links() & {BRIDGE, NEIGHBOUR_PORT, *(node.port for node in nodes)})
    found += [f"rule {rule.removeprefix('-A ')}" for rule in saved_rules()]
    return found
