"""Two namespaces with two shaped links between them, as two Sparks have two twins of one cable."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

LINKS = 2


@dataclass(frozen=True)
class Pair:
    """The namespaces and the sender's addresses, one a link."""

    sender: str
    receiver: str
    addresses: tuple[str, ...]

    def on_sender(self, *argv: str) -> list[str]:
        """The command as it runs on the sender."""
        return ["ip", "netns", "exec", self.sender, *argv]

    def on_receiver(self, *argv: str) -> list[str]:
        """The command as it runs on the receiver."""
        return ["ip", "netns", "exec", self.receiver, *argv]


@contextmanager
def pair(mbit: int) -> Iterator[Pair]:
    """Make the namespaces, and remove them whatever happens; the links end with them.

    Args:
        mbit: of each link and direction, Mbit/s; 0 for no limit.
    """
    own = os.getpid()
    names = (f"sctransfer-{own}-a", f"sctransfer-{own}-b")
    try:
        for name in names:
            _run("ip", "netns", "add", name)
            _run("ip", "-n", name, "link", "set", "lo", "up")
        for number in range(LINKS):
            _link(names, number, mbit)
        yield Pair(*names, tuple(f"10.255.{number}.1" for number in range(LINKS)))
    finally:
        for name in names:
            subprocess.run(("ip", "netns", "del", name), check=False, capture_output=True)


def _link(names: tuple[str, str], number: int, mbit: int) -> None:
    _run(
        *("ip", "-n", names[0], "link", "add", f"sc{number}", "type", "veth"),
        *("peer", "name", f"sc{number}", "netns", names[1]),
    )
    for host, name in enumerate(names, 1):
        _run("ip", "-n", name, "address", "add", f"10.255.{number}.{host}/24", "dev", f"sc{number}")
        _run("ip", "-n", name, "link", "set", f"sc{number}", "mtu", "9000", "up")
        if mbit:
            _run(
                *("tc", "-n", name, "qdisc", "add", "dev", f"sc{number}", "root", "tbf"),
                *("rate", f"{mbit}mbit", "burst", "1mb", "latency", "50ms"),
            )


def _run(*argv: str) -> None:
    subprocess.run(argv, check=True, capture_output=True, timeout=20)
