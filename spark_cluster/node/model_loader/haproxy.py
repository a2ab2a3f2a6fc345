"""HAProxy's runtime API: who has requests, since when a server has none, and who gets no more."""

from __future__ import annotations

import csv
import socket
from dataclasses import dataclass

ANSWER_S = 5.0
"""Seconds for an answer of the proxy."""


@dataclass(frozen=True)
class Use:
    """The use of a server.

    Attributes:
        requests: that it has now.
        idle_s: seconds since its last one began; None where it has had none.
        up: its own /health is fine.
    """

    requests: int = 0
    idle_s: float | None = None
    up: bool = False


def command(path: str, text: str) -> str:
    """Ask HAProxy; return its answer.

    Raises:
        OSError: it is not there, or does not answer in time.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asked:
        asked.settimeout(ANSWER_S)
        asked.connect(path)
        asked.sendall(f"{text}\n".encode())
        parts = []
        while part := asked.recv(65536):
            parts.append(part)
    return b"".join(parts).decode(errors="replace")


def uses(printed: str) -> dict[str, Use]:
    """Parse `show stat`: name of a server to its use; tolerant of columns that are missing."""
    rows = csv.DictReader(printed.lstrip("# ").splitlines())
    found = {}
    for row in rows:
        server = row.get("svname") or ""
        if server not in ("", "FRONTEND", "BACKEND"):
            idle = _number(row.get("lastsess"))
            found[server] = Use(
                requests=sum(max(0, _number(row.get(name)) or 0) for name in ("scur", "qcur")),
                idle_s=float(idle) if idle is not None and idle >= 0 else None,
                # "UP 1/3" is one whose checks begin to fail.
                up=(row.get("status") or "").startswith("UP"),
            )
    return found


def _number(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None
