"""The machines that may be Sparks, each once, from all that was found on the local network."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooLate
from dataclasses import dataclass
from ipaddress import IPv4Network

from spark_cluster.discovery.mdns import Announced, nearest
from spark_cluster.discovery.neighbours import Neighbour

MAKERS = (
    "spark", "gx10", "promaxgb10", "thinkstationpgx", "zgx", "edgexpert", "aitopatom", "gn100",
)  # fmt: skip
"""Beginnings of the host names of a GB10: NVIDIA's, ASUS', Dell's, Lenovo's, HP's, MSI's,
Gigabyte's and Acer's; the last four digits are those of its hardware address."""

_SPARK = re.compile(rf"({'|'.join(MAKERS)})-[0-9a-f]{{4}}")

RESOLVE_S = 2.0
"""Seconds that the system may take to find the address of a .local name."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A machine that may be a Spark.

    Attributes:
        address: how to reach it: its .local name where this machine resolves that, else IPv4.
        also: its address where that is its name, its name where that is its address.
        port: of its sshd.
        why: what tells that it is one.
        is_spark: its host name is that of a Spark; otherwise only its network card is NVIDIA's.
    """

    address: str
    also: str
    why: str
    is_spark: bool
    port: int = 22


@dataclass(frozen=True, slots=True)
class Found:
    """What was found: what may be Sparks, and how many others announce SSH."""

    candidates: tuple[Candidate, ...]
    others: int


def is_spark_name(host: str) -> bool:
    """Return whether a host name is one that a Spark has from its maker."""
    return _SPARK.fullmatch(host.lower()) is not None


def candidates(
    announced: Sequence[Announced],
    neighbours: Sequence[Neighbour],
    local: Sequence[IPv4Network],
    resolves: Callable[[str, str], bool] | None = None,
) -> Found:
    """Put together what was announced and what the neighbour tables list.

    Args:
        local: networks of this machine; other addresses are not believed.
        resolves: whether this machine finds that address by that name.
    """
    resolves = resolves or resolves_to
    nvidia = {neighbour.address: neighbour.mac for neighbour in neighbours if neighbour.is_nvidia}
    found, others, seen = [], 0, set[str]()
    for one in announced:
        seen.update(one.addresses)
        address = nearest(one.addresses, local)
        named = is_spark_name(one.host)
        card = any(address in nvidia for address in one.addresses)
        if address is None or not (named or card):
            others += 1
            continue
        name = f"{one.host}.local"
        why = "announced by mDNS" + (", NVIDIA network card" if card else "")
        both = (name, address) if resolves(name, address) else (address, one.host)
        found.append(Candidate(*both, why, named, one.port))
    for address, mac in sorted(nvidia.items()):
        if address not in seen and nearest([address], local):
            found.append(Candidate(address, mac, "NVIDIA network card", is_spark=False))
    return Found(tuple(sorted(found, key=lambda one: not one.is_spark)), others)


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
