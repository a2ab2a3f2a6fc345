"""A scan for TCP ports that accept a connection from here: each port is tried, many at a time.

A complete connection is made (no raw packets, so no root is needed) and closed at once; nothing is
sent.
"""

from __future__ import annotations

import contextlib
import errno
import resource
import selectors
import socket
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

EVERY = range(1, 65536)
IN_PROGRESS = (errno.EINPROGRESS, errno.EWOULDBLOCK)
NO_ROOM = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.EADDRNOTAVAIL, errno.EAGAIN)

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
    return _Scanner(timeout_s, _files(at_once), time.monotonic() + limit_s).run(targets)


def targets(addresses: Sequence[str], ports: Iterable[int]) -> Iterable[Target]:
    """Every port of every address, the addresses in turn."""
    return ((address, port) for port in ports for address in addresses)


class _Scanner:
    """A scan: what is under way, oldest first."""

    def __init__(self, timeout_s: float, at_once: int, until: float) -> None:
        self._timeout, self._at_once, self._until = timeout_s, at_once, until
        self._selector = selectors.DefaultSelector()
        self._waiting: deque[tuple[float, socket.socket]] = deque()
        self._open: list[Target] = []

    def run(self, targets: Iterable[Target]) -> Scan:
        tried, complete = 0, True
        with self._selector:
            for target in targets:
                if time.monotonic() > self._until:
                    complete = False
                    break
                while len(self._selector.get_map()) >= self._at_once:
                    self._collect(0.05)
                while not self._begin(target):
                    self._collect(0.05)
                tried += 1
                if tried % 64 == 0:
                    self._collect(0)
            while self._selector.get_map():
                self._collect(0.05)
        return Scan(tuple(sorted(self._open)), tried, complete)

    def _begin(self, target: Target) -> bool:
        """Start one connection; False when there is no room for it now."""
        address, port = target
        try:
            ip, _, scope = address.partition("%")
            family = socket.AF_INET6 if ":" in ip else socket.AF_INET
            where = (ip, port, 0, _scope(scope)) if ":" in ip else (ip, port)
            made = socket.socket(family, socket.SOCK_STREAM)
        except OSError as error:
            if error.errno in NO_ROOM and self._waiting:
                return False
            raise
        made.setblocking(False)
        status = made.connect_ex(where)
        if status in IN_PROGRESS:  # the answer of a node that is near may have come already
            status = made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) or status
        if status in IN_PROGRESS:
            self._selector.register(made, selectors.EVENT_WRITE, target)
            self._waiting.append((time.monotonic(), made))
            return True
        made.close()
        if status == 0:
            self._open.append(target)
        return not (status in NO_ROOM and self._waiting)

    def _collect(self, wait_s: float) -> None:
        """Take what has answered, and give up what has been silent for too long."""
        for key, _ in self._selector.select(wait_s):
            made = key.fileobj
            assert isinstance(made, socket.socket)  # noqa: S101  (all that was registered)
            if made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0:
                self._open.append(key.data)
            self._drop(made)
        oldest = time.monotonic() - self._timeout
        while self._waiting and (self._waiting[0][0] < oldest or self._waiting[0][1].fileno() < 0):
            _, made = self._waiting.popleft()
            if made.fileno() >= 0:
                self._drop(made)

    def _drop(self, made: socket.socket) -> None:
        self._selector.unregister(made)
        made.close()


def _scope(name: str) -> int:
    return socket.if_nametoindex(name) if name else 0


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
