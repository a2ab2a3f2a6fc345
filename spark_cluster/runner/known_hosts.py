"""What known_hosts files say of a host: keys and revocations, as OpenSSH's ssh-keygen finds them.

`ssh-keygen -F` knows hashes, patterns, negation, ports and markers (sshd(8), "SSH_KNOWN_HOSTS FILE
FORMAT"); paramiko's own reader knows none of the last three, keeps one key of a kind, and gives up
at bytes that are not UTF-8. Lines of certificate authorities do not count: no certificate is asked
for.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from spark_cluster.errors import Failed
from spark_cluster.facts.public_keys import is_whole, kind_of

LIMIT_S = 30.0
"""For ssh-keygen, seconds."""

_FOUND = re.compile(rb"# Host .* found: line (\d+) ?(REVOKED|CA)?\Z", re.DOTALL)


class Verdict(Enum):
    """The verdict of the files on a key that a host presents."""

    KNOWN = "known"
    NEW = "new"
    CHANGED = "changed"
    REVOKED = "revoked"


@dataclass(frozen=True)
class HostName:
    """The names under which a host's key is looked up.

    Attributes:
        name: `host`, `[host]:port` for another port than 22, or the HostKeyAlias.
        without_port: the host alone, asked for when nothing is known of `[host]:port`; or empty.
    """

    name: str
    without_port: str

    @classmethod
    def of(cls, host: str, port: int, alias: str = "") -> HostName:
        """The names of a host at a port, or those of its alias."""
        if alias:
            return cls(alias.lower(), "")
        host = host.lower()
        return cls(host, "") if port == 22 else cls(f"[{host}]:{port}", host)


@dataclass(frozen=True)
class Line:
    """A line that says something of a host.

    Attributes:
        revoked: the key is revoked; otherwise it is the host's.
        kind: the key's, e.g. `ssh-ed25519`.
        blob: the key.
    """

    path: Path
    number: int
    revoked: bool
    kind: str
    blob: bytes

    @property
    def place(self) -> str:
        """`FILE:LINE`."""
        return f"{self.path}:{self.number}"

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the line's key."""
        return fingerprint(self.blob)


def fingerprint(blob: bytes) -> str:
    """`SHA256:...` of a public key, as `ssh-keygen -l` prints it."""
    return "SHA256:" + base64.b64encode(hashlib.sha256(blob).digest()).decode().rstrip("=")


def lines_of(name: str, files: Iterable[Path]) -> list[Line]:
    """Return all lines that apply to a host, in the order of the files; damaged ones are skipped.

    Raises:
        Failed: a file is there and cannot be read: a revoked key could be in it.
    """
    return [line for path in files for line in _read(path, name)] if name else []


def judge(lines: Sequence[Line], blob: bytes) -> tuple[Verdict, Line | None]:
    """The verdict on a key, and the line that decided it.

    Args:
        lines: all that speak of the host.
    """
    for line in lines:
        if line.revoked and line.blob == blob:
            return Verdict.REVOKED, line
    plain = [line for line in lines if not line.revoked]
    for line in plain:
        if line.blob == blob:
            return Verdict.KNOWN, line
    if not plain:
        return Verdict.NEW, None
    same = [line for line in plain if line.kind == kind_of(blob)]
    return Verdict.CHANGED, (same or plain)[0]


def algorithms(lines: Sequence[Line], preferred: Sequence[str]) -> tuple[str, ...]:
    """Host key algorithms in the order in which they are asked for.

    A host with several keys is to show one that is known.

    Args:
        lines: all that speak of the host.
        preferred: in the user's order.
    """
    known = {line.kind for line in lines if not line.revoked}
    if preferred and _kind_of_algorithm(preferred[0]) in known:
        return tuple(preferred)
    return tuple(sorted(preferred, key=lambda name: _kind_of_algorithm(name) not in known))


def numbers_of(name: str, content: bytes) -> dict[int, str]:
    """Return the lines of a file's content that apply to a host: number, from 1, to the marker that
    ssh-keygen sees: empty, `REVOKED` or `CA`.

    Raises:
        Failed: there is no ssh-keygen here, or it does not end.
    """
    if not content.strip():
        return {}
    argv = ["ssh-keygen", "-F", name, "-f", "/dev/stdin"]
    try:
        done = subprocess.run(
            argv, input=content, capture_output=True, timeout=LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(
            f"no host key can be looked up: ssh-keygen: {error}",
            hint="install OpenSSH's client (package openssh-client)",
        ) from None
    found = filter(None, map(_FOUND.match, done.stdout.split(b"\n")))
    return {int(match[1]): (match[2] or b"").decode() for match in found}


def key_in(line: bytes) -> tuple[str, bytes] | None:
    """Return kind and blob of the key in a line; None where it has no whole one."""
    words = line.split()
    if words and words[0].startswith(b"@"):
        words.pop(0)
    if len(words) < 3:
        return None
    kind = words[1].decode(errors="replace")
    try:
        blob = base64.b64decode(words[2], validate=True)
    except (ValueError, binascii.Error):
        return None
    return (kind, blob) if is_whole(kind, blob) else None


def _read(path: Path, name: str) -> Iterator[Line]:
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return
    except OSError as error:
        raise Failed(
            f"cannot be read: {error.strerror}",
            where=str(path),
            hint="it may say that a host key is revoked, so nothing is accepted without it",
        ) from None
    lines = content.split(b"\n")
    for number, marker in numbers_of(name, content).items():
        key = key_in(lines[number - 1])
        if key is not None and marker != "CA":
            yield Line(path, number, marker == "REVOKED", *key)


def _kind_of_algorithm(name: str) -> str:
    """An RSA key has one name in known_hosts and others, after the hash, on the wire."""
    return "ssh-rsa" if name.startswith("rsa-sha2-") else name
