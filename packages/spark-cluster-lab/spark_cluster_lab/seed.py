"""The things a node has before its first boot: name, addresses, keys. Roles add the remainder."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from spark_cluster_lab.layout import FABRIC, GATEWAY, MANAGEMENT, UNCABLED, USER, Layout, NodeLayout
from spark_cluster_lab.machine import name_servers
from spark_cluster_lab.shell import run

USER_ID = 1000
NETPLAN = """network:
  version: 2
  renderer: networkd
  ethernets:
    {interface}:
      addresses: [{address}/24]
      routes: [{{to: default, via: {gateway}}}]
      nameservers: {{addresses: [{servers}]}}
"""
# As a fresh Spark: the cabled port has a link-local IPv4 address, the others IPv6 only.
LINK_LOCAL = """[Match]
Name={names}

[Link]
RequiredForOnline=no

[Network]
LinkLocalAddressing={families}
"""


def make_keys(layout: Layout) -> None:
    """The key that the laptop logs in with."""
    if not layout.key.exists():
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", layout.key])


def make_host_keys(node: NodeLayout, *, new: bool = False) -> None:
    """The node's own keys; they outlive its file system unless `new`."""
    if new:
        shutil.rmtree(node.host_keys, ignore_errors=True)
    key = node.host_keys / "ssh_host_ed25519_key"
    if not key.exists():
        node.host_keys.mkdir(parents=True, exist_ok=True)
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", node.name, "-f", key])
    kind, public, *_ = key.with_suffix(".pub").read_text().split()
    node.known_hosts.write_text(f"{node.address} {kind} {public}\n")


def remember_host_keys(node: NodeLayout) -> None:
    """Note the keys that the node has now: roles give it new ones, and it is still this node."""
    public = sorted((node.root / "etc/ssh").glob("ssh_host_*_key.pub"))
    keys = [path.read_text().split()[:2] for path in public]
    text = "".join(f"{node.address} {' '.join(key)}\n" for key in keys if len(key) == 2)
    if text and text != node.known_hosts.read_text():
        node.known_hosts.write_text(text)


def write_known_hosts(layout: Layout, nodes: list[NodeLayout]) -> None:
    """Write the known_hosts of a laptop that trusts the lab's nodes."""
    layout.known_hosts.write_text("".join(node.known_hosts.read_text() for node in nodes))


def seed(layout: Layout, node: NodeLayout) -> None:
    """Write into a fresh file system what makes it this node."""
    root = node.root
    (root / "etc/hostname").write_text(f"{node.name}\n")
    # dbus' own copy, made when the base was built: with it all nodes would get one machine id.
    (root / "var/lib/dbus/machine-id").unlink(missing_ok=True)
    (root / "etc/hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {node.name}\n")
    netplan = NETPLAN.format(
        interface=MANAGEMENT,
        address=node.address,
        gateway=GATEWAY,
        servers=", ".join(name_servers()),
    )
    write(root / "etc/netplan/10-management.yaml", netplan, mode=0o600)
    networkd = root / "usr/lib/systemd/network"
    both = LINK_LOCAL.format(names=FABRIC[0], families="yes")
    rest = LINK_LOCAL.format(names=" ".join((FABRIC[1], *UNCABLED)), families="ipv6")
    write(networkd / "80-spark-fabric.network", both)
    write(networkd / "81-spark-fabric.network", rest)
    for source in node.host_keys.iterdir():
        mode = 0o644 if source.suffix == ".pub" else 0o600
        write(root / "etc/ssh" / source.name, source.read_text(), mode=mode)
    ssh = root / f"home/{USER}/.ssh"
    ssh.mkdir(mode=0o700)
    public = layout.key.with_suffix(".pub").read_text()
    write(ssh / "authorized_keys", public, mode=0o600)
    for path in (ssh, ssh / "authorized_keys"):
        os.chown(path, USER_ID, USER_ID)


def write(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
