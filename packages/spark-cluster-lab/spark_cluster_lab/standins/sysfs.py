"""/sys/class/infiniband as files: HCAs, port states, GID tables that follow the real addresses."""

from __future__ import annotations

import json
import os
import subprocess
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

from .state import HCAS, RUN, hca_active

CLASS = RUN / "class"
SPEED = RUN / "speed"
GIDS = 16
NO_GID = ":".join(["0000"] * 8)
COUNTERS = ("port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets")


def put(path: Path, text: str) -> None:
    """Write a file in place (someone may have it open or bound elsewhere), if it differs."""
    content = f"{text}\n".encode()
    try:
        if path.read_bytes() == content:
            return
    except FileNotFoundError:
        path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, content, 0)
        os.ftruncate(descriptor, len(content))
    finally:
        os.close(descriptor)


def hexadecimal(address: bytes) -> str:
    return ":".join(address[i : i + 2].hex() for i in range(0, 16, 2))


def link_local(mac: str) -> str:
    """The GID every port has: its link-local address, from its hardware address.

    >>> link_local("4e:bb:47:00:01:01")
    'fe80:0000:0000:0000:4cbb:47ff:fe00:0101'
    """
    octets = bytes(int(octet, 16) for octet in mac.split(":"))
    middle = bytes([octets[0] ^ 2]) + octets[1:3] + b"\xff\xfe" + octets[3:]
    return hexadecimal(bytes([0xFE, 0x80, 0, 0, 0, 0, 0, 0]) + middle)


def mapped(address: str) -> str:
    """An IPv4 address as a GID.

    >>> mapped("192.168.177.11")
    '0000:0000:0000:0000:0000:ffff:c0a8:b10b'
    """
    return hexadecimal(bytes(10) + b"\xff\xff" + IPv4Address(address).packed)


def gid_table(
    mac: str, addresses: list[str], shift: int = 0, *, roce_v2: bool = True
) -> list[tuple[str, str]]:
    """(GID, type) by index: each address twice, RoCE v1 first; `shift` empty entries in between."""
    kinds = ("IB/RoCE v1", "RoCE v2") if roce_v2 else ("IB/RoCE v1",)
    table = [(link_local(mac), kind) for kind in kinds]
    table += [(NO_GID, "")] * shift
    for address in addresses:
        table += [(mapped(address), kind) for kind in kinds]
    return (table + [(NO_GID, "")] * GIDS)[:GIDS]


def interfaces() -> dict[str, dict[str, Any]]:
    """The node's interfaces as `ip` describes them, by name."""
    done = subprocess.run(["ip", "-json", "address"], capture_output=True, text=True, check=False)
    return {link["ifname"]: link for link in json.loads(done.stdout or "[]")}


def refresh_ports(state: dict[str, Any]) -> None:
    """Write the files of every HCA as things are now."""
    found = interfaces()
    for index, (hca, interface) in enumerate(HCAS.items()):
        link = found.get(interface, {})
        active = hca_active(hca, state)
        folder = CLASS / "infiniband" / hca
        put(folder / "fw_ver", state["firmware"])
        put(folder / "board_id", state["board_id"])
        put(folder / "hca_type", "MT4129")
        put(folder / "node_type", "1: CA")
        put(folder / "node_guid", f"4cbb:4703:0000:91{index:02x}")
        put(folder / "sys_image_guid", "4cbb:4703:0000:9100")
        (folder / "device/net" / interface).mkdir(parents=True, exist_ok=True)
        put(folder / "device/current_link_width", str(state["pcie_width"].get(hca, 4)))
        put(folder / "device/current_link_speed", "32.0 GT/s PCIe")
        port = folder / "ports/1"
        put(port / "state", "4: ACTIVE" if active else "1: DOWN")
        put(port / "phys_state", "5: LinkUp" if active else "3: Disabled")
        put(port / "link_layer", "Ethernet")
        put(port / "rate", "200 Gb/sec (4X HDR)" if active else "40 Gb/sec (4X QDR)")
        for counter in COUNTERS:
            put(port / "counters" / counter, "0")
        addresses = [
            entry["local"] for entry in link.get("addr_info", []) if entry["family"] == "inet"
        ]
        shift = int(state["gid_shift"].get(hca, 0))
        mac = link.get("address", "00:00:00:00:00:00")
        table = gid_table(mac, addresses, shift, roce_v2=state["roce_v2"])
        for number, (gid, kind) in enumerate(table):
            put(port / "gids" / str(number), gid)
            put(port / "gid_attrs/types" / str(number), kind)
            put(port / "gid_attrs/ndevs" / str(number), interface if kind else "")
        put(SPEED / interface, str(state["link_speed"] if active else -1))
