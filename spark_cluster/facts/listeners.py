"""The programs that listen on a node's TCP ports, as its `ss` reports them."""

from __future__ import annotations

import re
from dataclasses import dataclass

LISTENERS = ("ss", "-Hltnp")

EVERYWHERE = ("*", "0.0.0.0", "::")  # noqa: S104

_PROGRAM = re.compile(r'\(\("([^"]+)"(?:,pid=([0-9]{1,10}))?')
_PORT = re.compile(r"[0-9]{1,5}")


@dataclass(frozen=True)
class Listener:
    """A port that is listened on.

    Attributes:
        address: without brackets and interface.
        program: empty where `ss` does not say.
        pid: its process; None where `ss` does not say.
    """

    address: str
    port: int
    program: str = ""
    pid: int | None = None

    def __str__(self) -> str:
        name = self.program or "another program"
        return f"{name} (PID {self.pid})" if self.pid is not None else name

    def blocks(self, address: str) -> bool:
        """Return whether no one else can listen on this port of an address."""
        return self.address == address or bool({self.address, address} & {*EVERYWHERE})


def parse(text: str) -> list[Listener]:
    """Read the output of `ss -Hltnp`; lines of another form are left out."""
    found = []
    for line in text.splitlines():
        words = line.split()
        address, _, port = words[3].rpartition(":") if len(words) > 3 else ("", "", "")
        if _PORT.fullmatch(port) is None:
            continue
        told = _PROGRAM.search(line)
        name, pid = (told[1], told[2]) if told else ("", None)
        at = address.strip("[]").partition("%")[0]
        found.append(Listener(at, int(port), name, int(pid) if pid else None))
    return found
