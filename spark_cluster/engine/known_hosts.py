"""Reads known_hosts files: the keys that are known of one host.

paramiko's own reader gives the whole file up at the first line that it does not understand, such as
`@cert-authority` or a damaged one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import paramiko

USER_FILE = Path("~/.ssh/known_hosts")


def known(name: str, files: Iterable[Path | None]) -> dict[str, paramiko.PKey]:
    """Kind to key of a host; what a later file says wins.

    Args:
        name: `host`, or `[host]:port` beside port 22.
    """
    found: dict[str, paramiko.PKey] = {}
    for path in files:
        for line in _lines(path):
            key = _key(line) if is_of(line, name) else None
            if key is not None:
                found[key.get_name()] = key
    return found


def host_name(host: str, port: int) -> str:
    """As known_hosts names a host."""
    return host if port == 22 else f"[{host}]:{port}"


def is_of(line: str, name: str) -> bool:
    """Whether a line, hashed or plain, gives a key of this host."""
    import paramiko

    words = line.split()
    if len(words) < 3 or words[0].startswith(("@", "#")):
        return False
    if not words[0].startswith("|1|"):
        return name in words[0].split(",")
    try:
        return bool(paramiko.HostKeys.hash_host(name, words[0]) == words[0])
    except (ValueError, IndexError, AssertionError):
        return False


def _lines(path: Path | None) -> Iterator[str]:
    if path is not None and path.is_file():
        yield from path.read_text(errors="replace").splitlines()


def _key(line: str) -> paramiko.PKey | None:
    from paramiko.hostkeys import HostKeyEntry, InvalidHostKey
    from paramiko.ssh_exception import SSHException

    try:
        entry = HostKeyEntry.from_line(" ".join(line.split()[:3]))
    except (InvalidHostKey, SSHException, ValueError):
        return None
    return entry.key if entry is not None else None
