"""Machines that this one has just spoken to on its own links, as its neighbour tables list them.

Only what the system knows already is read; no range of addresses is tried.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass

from spark_cluster.discovery.mdns import usable

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
    try:
        entries = json.loads(text or "[]")
    except (ValueError, RecursionError):
        return []
    return [
        Neighbour(str(entry["dst"]), str(entry.get("dev", "")), str(entry["lladdr"]).lower())
        for entry in (entries if isinstance(entries, list) else ())
        if isinstance(entry, dict) and "lladdr" in entry and "dst" in entry
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
