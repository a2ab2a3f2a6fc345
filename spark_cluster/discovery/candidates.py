"""The machines that may be Sparks, each once, from all that was found on the local network."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as TooLate
from dataclasses import dataclass
from ipaddress import IPv4Network

from spark_cluster.discovery.mdns import COUNT, Announced, nearest
from spark_cluster.discovery.neighbours import Neighbour

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
class Found:
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
        by_name = not counted and resolves(name, address)
        both = (name, address) if by_name else (address, one.host)
        found.append(Candidate(*both, why, named, card, one.port))
    for address, mac in sorted(nvidia.items()):
        if address not in seen and nearest([address], local):
            found.append(Candidate(address, mac, "NVIDIA network card", nvidia=True))
    found.sort(key=lambda one: (not one.nvidia, not one.named))
    return Found(tuple(found), others)


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
