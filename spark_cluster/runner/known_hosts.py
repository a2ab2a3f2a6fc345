"""The contents of known_hosts files for a host: keys, certificate authorities, revocations.

The rules are those of OpenSSH (sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT", and its hostfile.c and
sshconnect.c). paramiko's own reader is not used: it knows no markers, patterns and negation, keeps
one key of a kind, and gives up at bytes that are not UTF-8.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from spark_cluster.errors import Failed
from spark_cluster.facts.public_keys import is_whole, kind_of

CERTIFICATE = "-cert-v01@openssh.com"
"""How the name of an algorithm ends whose host keys are certificates."""

_MARKERS = {b"@revoked": "revoked", b"@cert-authority": "authority"}


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
        principal: what a certificate must be made out for.
    """

    name: str
    without_port: str
    principal: str

    @classmethod
    def of(cls, host: str, port: int, alias: str = "") -> HostName:
        """The names of a host at a port, or those of its alias."""
        if alias:
            return cls(alias.lower(), "", alias.lower())
        host = host.lower()
        if port == 22:
            return cls(host, "", host)
        return cls(f"[{host}]:{port}", host, host)


@dataclass(frozen=True)
class Line:
    """A line that says something of a host.

    Attributes:
        marker: empty for a plain key, `revoked` or `authority`.
        kind: the key's, e.g. `ssh-ed25519`.
        blob: the key.
    """

    path: Path
    number: int
    marker: str
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


def judge(
    lines: Sequence[Line], blob: bytes, authority: bytes | None = None
) -> tuple[Verdict, Line | None]:
    """The verdict on a key, and the line that decided it.

    Args:
        lines: all that speak of the host.
        blob: the key without its certificate.
        authority: the key that signed its certificate; None for a plain key. A certificate is
            `KNOWN` when its authority is, which says nothing yet of what is in it.
    """
    for line in lines:
        if line.marker == "revoked" and line.blob in (blob, authority):
            return Verdict.REVOKED, line
    wanted, marker = (blob, "") if authority is None else (authority, "authority")
    candidates = [line for line in lines if line.marker == marker]
    for line in candidates:
        if line.blob == wanted:
            return Verdict.KNOWN, line
    if authority is not None or not candidates:
        return Verdict.NEW, None
    same = [line for line in candidates if line.kind == kind_of(blob)]
    return Verdict.CHANGED, (same or candidates)[0]


def algorithms(
    lines: Sequence[Line], preferred: Sequence[str], *, certificates: bool = False
) -> tuple[str, ...]:
    """Host key algorithms in the order in which they are asked for.

    A host with several keys is to show one that is known. Certificates are asked for only where
    an authority or a revocation speaks of the host: with others they would decide nothing.

    Args:
        lines: all that speak of the host.
        preferred: in the user's order.
        certificates: ask for them in any case.
    """
    plain = {line.kind for line in lines if not line.marker}
    marked = {line.marker for line in lines} - {""}
    wanted = certificates or bool(marked)
    offered = [name for name in preferred if wanted or not name.endswith(CERTIFICATE)]
    if offered and _kind_of_algorithm(offered[0]) in plain:
        return tuple(offered)

    def is_first(name: str) -> bool:
        certified = name.endswith(CERTIFICATE) and "authority" in marked
        return certified or _kind_of_algorithm(name) in plain

    return tuple(sorted(offered, key=lambda name: not is_first(name)))


def matches(name: str, patterns: bytes) -> bool:
    """Return whether the first field of a line applies to a host.

    Args:
        name: in lower case.
        patterns: a hashed name, or patterns with commas between, of which `!` excludes.
    """
    if patterns.startswith(b"|"):
        return is_hash_of(name, patterns)
    found = False
    for pattern in patterns.split(b","):
        text = pattern.decode("utf-8", "surrogateescape").lower()
        if _fits(name, text.removeprefix("!")):
            if text.startswith("!"):
                return False
            found = True
    return found


def is_hash_of(name: str, hashed: bytes) -> bool:
    """Return whether `|1|SALT|HASH` is the hash of a name."""
    try:
        _, version, salt, digest = hashed.split(b"|")
        key, wanted = base64.b64decode(salt, validate=True), base64.b64decode(digest, validate=True)
    except (ValueError, binascii.Error):
        return False
    made = hmac.new(key, name.encode("utf-8", "surrogateescape"), hashlib.sha1).digest()
    return version == b"1" and hmac.compare_digest(made, wanted)


@dataclass(frozen=True)
class Fields:
    """A line of a file, taken apart; `names` as it stands there."""

    marker: bytes
    names: bytes
    kind: str
    blob: bytes


def parse(line: bytes) -> Fields | None:
    """A line's parts; None for a comment, an empty or a damaged line."""
    words = line.split()
    marker = words.pop(0) if words and words[0].startswith(b"@") else b""
    if len(words) < 3 or words[0].startswith((b"#", b"@")) or marker not in (b"", *_MARKERS):
        return None
    kind = words[1].decode(errors="replace")
    try:
        blob = base64.b64decode(words[2], validate=True)
    except (ValueError, binascii.Error):
        return None
    return Fields(marker, words[0], kind, blob) if is_whole(kind, blob) else None


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
    for number, text in enumerate(content.split(b"\n"), start=1):
        found = parse(text)
        if found is not None and matches(name, found.names):
            marker = _MARKERS.get(found.marker, "")
            yield Line(path, number, marker, found.kind, found.blob)


def _fits(name: str, pattern: str) -> bool:
    """`*` is any text, `?` any one character; all else is itself."""
    words = {"*": ".*", "?": "."}
    text = "".join(words.get(c) or re.escape(c) for c in re.sub(r"\*+", "*", pattern))
    return re.fullmatch(text, name, re.DOTALL) is not None


def _kind_of_algorithm(name: str) -> str:
    """An RSA key has one name in known_hosts and others, after the hash, on the wire."""
    plain = name.removesuffix(CERTIFICATE)
    return "ssh-rsa" if plain.startswith("rsa-sha2-") else plain
