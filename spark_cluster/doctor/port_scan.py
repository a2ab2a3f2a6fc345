"""A scan for TCP ports that accept a connection from here: each port is tried, many at a time.

A complete connection is made (no raw packets, so no root is needed) and closed at once; nothing is
sent.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import socket
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

EVERY = range(1, 65536)
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL, errno.EAGAIN)
ROOM_S = 0.05
"""Seconds until a connection for which there was no room is tried again."""

Target = tuple[str, int]
"""Address and port."""


@dataclass(frozen=True)
class Scan:
    """The result of a scan.

    Attributes:
        open: what accepted a connection, in order.
        tried: how many were tried.
        complete: whether all were; otherwise the time was up.
    """

    open: tuple[Target, ...]
    tried: int
    complete: bool


def scan(
    targets: Iterable[Target],
    *,
    timeout_s: float = 1.0,
    at_once: int = 4000,
    limit_s: float = 600.0,
) -> Scan:
    """Try to connect to every target, in the order given.

    Args:
        timeout_s: seconds after which one without an answer counts as closed.
        at_once: most connections at a time; fewer where the system allows fewer files.
        limit_s: seconds after which no further one is tried.
    """
    until, left, tried = time.monotonic() + limit_s, iter(targets), 0
    found: list[Target] = []

    async def work() -> None:
        nonlocal tried
        while time.monotonic() < until and (target := next(left, None)) is not None:
            tried += 1
            if await _is_open(target, timeout_s):
                found.append(target)

    async def all_of_it() -> None:
        await asyncio.gather(*(work() for _ in range(_files(at_once))))

    asyncio.run(all_of_it())
    return Scan(tuple(sorted(found)), tried, complete=next(left, None) is None)


def targets(addresses: Sequence[str], ports: Iterable[int]) -> Iterable[Target]:
    """Every port of every address, the addresses in turn."""
    return ((address, port) for port in ports for address in addresses)


async def _is_open(target: Target, timeout_s: float) -> bool:
    """Return whether a connection is accepted in time; one without room is tried again."""
    until = time.monotonic() + timeout_s
    family = socket.AF_INET6 if ":" in target[0] else socket.AF_INET
    while True:
        try:
            with socket.socket(family, socket.SOCK_STREAM) as made:
                made.setblocking(False)
                async with asyncio.timeout(timeout_s):
                    await asyncio.get_running_loop().sock_connect(made, target)
                return True
        except OSError as error:  # TimeoutError is one
            if error.errno not in NO_ROOM or time.monotonic() > until:
                return False
        await asyncio.sleep(ROOM_S)


def _files(wanted: int) -> int:
    """Return how many sockets may be open, after raising the limit as far as possible."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    room = wanted + 64
    if soft == resource.RLIM_INFINITY or soft >= room:
        return wanted
    most = room if hard == resource.RLIM_INFINITY else min(room, hard)
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
        soft = most
    return max(16, min(wanted, soft - 64))
