"""Host keys in known_hosts files: what they say of a key, as strictly as OpenSSH.

`ssh-keygen -F` finds a host's lines. It knows hashes, patterns, negation, ports and markers
(sshd(8), "SSH_KNOWN_HOSTS FILE FORMAT"); paramiko's own reader knows none of the last three, keeps
one key of a kind, and gives up at bytes that are not UTF-8. Lines of certificate authorities do not
count: no certificate is asked for, and a host that has one shows its plain key. A key that a user
accepts is written here, too.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import hashlib
import os
import re
import stat
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from spark_cluster.config.fact_gathering import is_whole, kind_of
from spark_cluster.errors import Failed, naming
from spark_cluster.runner.ssh_route import SshHop

LIMIT_S = 30.0
"""For ssh-keygen, seconds."""

Verdict = Literal["trusted", "new", "changed", "revoked"]

_FOUND = re.compile(rb"# Host .* found: line (\d+) ?(REVOKED|CA)?\Z", re.DOTALL)
_REVOCATION_LIST = b"SSHKRL\n\0"


@dataclass(frozen=True)
class PublicKey:
    """A public key."""

    blob: bytes

    @property
    def kind(self) -> str:
        """E.g. `ssh-ed25519`."""
        return kind_of(self.blob)

    @property
    def text(self) -> str:
        """`KIND BASE64`."""
        return f"{self.kind} {base64.b64encode(self.blob).decode()}"

    @property
    def fingerprint(self) -> str:
        """`SHA256:...`, as `ssh-keygen -l` prints it."""
        digest = base64.b64encode(hashlib.sha256(self.blob).digest())
        return "SHA256:" + digest.decode().rstrip("=")


@dataclass(frozen=True)
class KnownHostsLine(PublicKey):
    """A key in a file of host keys, or of revoked ones.

    Attributes:
        place: `FILE:LINE`, or `FILE` of a binary list.
        revoked: it is never accepted; otherwise it is the host's.
    """

    place: str
    revoked: bool


@dataclass(frozen=True)
class HostKey(PublicKey):
    """The key that a host has proved to hold, and what the files say of it.

    Attributes:
        host: as known_hosts names it.
        line: the line that decided; of `changed` one with another key, of `new` None.
    """

    host: str
    verdict: Verdict
    line: KnownHostsLine | None


class HostKeyCheck:
    """What is known of a host's keys when a connection to it begins.

    Raises:
        Failed: a file cannot be read: a revoked key could be in it.
    """

    def __init__(self, hop: SshHop) -> None:
        self._hop = hop
        self._lines = self._read(hop.known_as)

    def order(self, supported: Sequence[str]) -> tuple[str, ...]:
        """Return the host key algorithms to ask for, of those that the SSH library supports.

        A host with several keys is to show one that is known.
        """
        known = {line.kind for line in self._lines if not line.revoked}
        wanted = [name for name in self._hop.host_key_algorithms if name in supported] or supported

        def is_unknown(name: str) -> bool:
            # An RSA key has one name in known_hosts and others, after the hash, on the wire.
            return ("ssh-rsa" if name.startswith("rsa-sha2-") else name) not in known

        return tuple(sorted(wanted, key=is_unknown) if is_unknown(wanted[0]) else wanted)

    def judge(self, blob: bytes) -> HostKey:
        """Return the verdict on the key that the host has proved to hold."""
        hop, name = self._hop, self._hop.known_as
        for path in hop.revoked_host_keys:
            if (line := _revoked(path, blob)) is not None:
                return HostKey(blob, name, "revoked", line)
        found = _judged(blob, name, self._lines)
        # Under the name with the port, and when that is not known without it, as ssh does.
        if found.verdict == "new" and hop.port != 22 and not hop.key_alias:
            other = _judged(blob, name, self._read(hop.host.lower()))
            if other.verdict in ("trusted", "revoked"):
                return other
        return found

    def _read(self, name: str) -> list[KnownHostsLine]:
        files = (*self._hop.own_known_hosts, *self._hop.global_known_hosts)
        return [line for path in dict.fromkeys(files) for line in _read(path, name)]


def _judged(blob: bytes, name: str, lines: list[KnownHostsLine]) -> HostKey:
    same = [line for line in lines if line.blob == blob]
    if same:
        decided = next((line for line in same if line.revoked), same[0])
        return HostKey(blob, name, "revoked" if decided.revoked else "trusted", decided)
    others = [line for line in lines if not line.revoked]
    others.sort(key=lambda line: line.kind != kind_of(blob))
    return HostKey(blob, name, *(("changed", others[0]) if others else ("new", None)))


def _readable(path: Path, what: str = "") -> AbstractContextManager[None]:
    """Give up when a file cannot be read; a file of known hosts need not be there."""
    hint = "it may say that a host key is revoked, so nothing is accepted without it"
    return naming(Failed, f"{what}cannot be read", where=str(path), hint=hint)


def _read(path: Path, name: str) -> Iterator[KnownHostsLine]:
    """Yield the keys that a file gives a host or revokes; damaged lines are skipped."""
    lines: list[bytes] = []
    missing = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
    with _readable(path), contextlib.suppress(*missing):
        lines = path.read_bytes().split(b"\n")
    for number, marker in _markers(name, lines).items():
        blob = _key_in(lines[number - 1])
        if blob is not None and marker != "CA":
            yield KnownHostsLine(blob, f"{path}:{number}", marker == "REVOKED")


def _revoked(path: Path, blob: bytes) -> KnownHostsLine | None:
    """Return the line of a file of revoked keys that has a key; the file may be a binary list."""
    with _readable(path, "RevokedHostKeys "):
        content = path.read_bytes()
        if content.startswith(_REVOCATION_LIST):
            key = f"{PublicKey(blob).text}\n".encode()
            done = _ssh_keygen("-Q", "-f", str(path), "/dev/stdin", given=key)
            if done.returncode == 0:
                return None
            if b"REVOKED" in done.stdout:
                return KnownHostsLine(blob, str(path), True)
            raise OSError(errno.EINVAL, "ssh-keygen does not take it for a list of revoked keys")
    for number, line in enumerate(content.split(b"\n"), start=1):
        if _key_in(b"* " + line) == blob:
            return KnownHostsLine(blob, f"{path}:{number}", True)
    return None


def _markers(name: str, lines: list[bytes]) -> dict[int, str]:
    """Return the lines that apply to a host: number, from 1, to the marker that ssh-keygen sees:
    empty, `REVOKED` or `CA`.
    """
    if not any(line.strip() for line in lines):
        return {}
    out = _ssh_keygen("-F", name, "-f", "/dev/stdin", given=b"\n".join(lines)).stdout
    found = filter(None, map(_FOUND.match, out.split(b"\n")))
    return {int(match[1]): (match[2] or b"").decode() for match in found}


def _ssh_keygen(*words: str, given: bytes) -> subprocess.CompletedProcess[bytes]:
    argv = ["ssh-keygen", *words]
    try:
        return subprocess.run(argv, input=given, capture_output=True, timeout=LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(
            f"no host key can be looked up: ssh-keygen: {error}",
            hint="install OpenSSH's client (package openssh-client)",
        ) from None


def _key_in(line: bytes) -> bytes | None:
    """Return the key in a line; None where it has no whole one of the kind that it says."""
    words = line.split()
    if words and words[0].startswith(b"@"):
        words.pop(0)
    if len(words) < 3:
        return None
    try:
        blob = base64.b64decode(words[2], validate=True)
    except (ValueError, binascii.Error):
        return None
    return blob if is_whole(words[1].decode(errors="replace"), blob) else None


def of_host(lines: list[bytes], name: str) -> list[tuple[bytes, PublicKey | None]]:
    """Return each line of a file with the key that it gives a host; None where it gives it none.

    Raises:
        Failed: there is no ssh-keygen here.
    """
    markers = _markers(name, lines)
    blobs = (_key_in(line) if markers.get(n) == "" else None for n, line in enumerate(lines, 1))
    keys = (None if blob is None else PublicKey(blob) for blob in blobs)
    return list(zip(lines, keys, strict=True))


# Changes of a file: it is changed as bytes, line by line, so that comments, order, damaged lines
# and what is not UTF-8 stay. `ssh-keygen -R` would remove whole lines, with their other names and
# patterns.

_KIND = re.compile(r"[A-Za-z0-9@.-]+")
_NAME = re.compile(r"[\w.:%\[\]~-][\w.:%\[\]~+@/=-]*")
"""No space, comma, pattern, negation, marker, comment or hash."""

TRIES = 10
"""Of changing a file that other programs change meanwhile."""

Change = Callable[[list[bytes]], list[bytes]]

_one_at_a_time = threading.Lock()


def known_hosts_line(host: str, key: PublicKey) -> bytes:
    """A line of known_hosts; the key's kind may be what a host says of its own key.

    Raises:
        Failed: the name or the kind would make something else of it than one line of one host.
    """
    if not _NAME.fullmatch(host):
        raise Failed(f"found {host!r}, which is not a name for known_hosts: expected one host")
    if not _KIND.fullmatch(key.kind):
        raise Failed(f"found {key.kind!r}, which is not a type of host key", where=host)
    return f"{host} {key.text}".encode()


def file_of(hop: SshHop) -> Path:
    """The known_hosts file that is written for a host: the inventory's, or the user's own.

    Raises:
        Failed: there is none.
    """
    if not hop.own_known_hosts:
        raise Failed(
            "there is no file for its host key: UserKnownHostsFile is none",
            where=hop.target.node.name,
            hint="give `known_hosts` in the inventory",
        )
    return hop.own_known_hosts[0]


def write(path: Path, key: HostKey) -> None:
    """Add an accepted key to a file; of a host whose key has changed the older ones go.

    Raises:
        Failed: the file cannot be written.
    """
    added = known_hosts_line(key.host, key)

    def change(lines: list[bytes]) -> list[bytes]:
        kept: Iterable[bytes | None] = lines
        if key.verdict == "changed":
            of = of_host(lines, key.host)
            kept = (line if its is None else without(line, key.host) for line, its in of)
        return [*(line for line in kept if line not in (None, added)), added]

    update(path, change)


# -- changing a file -------------------------------------------------------------------------------


def without(line: bytes, name: str) -> bytes | None:
    """Return a line that gives a host its key without that host; None when it names no other.

    Only the name itself and its hash go: a pattern such as `*.lan` speaks of others too.
    """
    names = line.split(None, 1)[0]
    gone = name.lower().encode("utf-8", "surrogateescape")
    kept = [one for one in names.split(b",") if one.lower() != gone and not one.startswith(b"|")]
    if all(one.startswith(b"!") for one in kept):
        return None
    return line.replace(names, b",".join(kept), 1)


def update(path: Path, change: Change) -> None:
    """Replace a file by what `change` makes of its lines, in one step.

    It keeps its mode and owner (a new one is for the user only), and a link stays one. What
    another program, such as ssh, appends meanwhile is not lost: then it is all done again.

    Raises:
        Failed: it cannot be read or written, or is not a regular file.
    """
    try:
        path = path.resolve()
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _one_at_a_time:
            is_done = any(_replaced(path, change) for _ in range(TRIES))
    except (OSError, RuntimeError) as error:  # RuntimeError: links in a circle
        why = getattr(error, "strerror", None) or str(error)
        raise Failed(f"cannot be written: {why}", where=str(path)) from None
    if not is_done:
        raise Failed("other programs keep on changing it", where=str(path), hint="try again")


def _replaced(path: Path, change: Change) -> bool:
    """Replace the file; return False when the file was changed meanwhile."""
    found = path.stat() if path.exists() else None
    if found is not None and not stat.S_ISREG(found.st_mode):
        raise Failed(
            "no host key can be written there: it is not a regular file",
            where=str(path),
            hint="give `known_hosts` in the inventory, or another UserKnownHostsFile in ssh_config",
        )
    old = path.read_bytes() if found else b""
    lines = change(old.removesuffix(b"\n").split(b"\n") if old else [])
    new = b"".join(line + b"\n" for line in lines)
    if new == old:
        return True
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    staged = Path(name)
    try:
        with os.fdopen(handle, "wb") as out:
            out.write(new)
            out.flush()
            if found is not None:
                if (found.st_uid, found.st_gid) != (os.geteuid(), os.getegid()):
                    os.fchown(handle, found.st_uid, found.st_gid)
                os.fchmod(handle, stat.S_IMODE(found.st_mode))
            os.fsync(handle)
        if (path.read_bytes() if path.exists() else b"") != old:
            return False
        staged.replace(path)
        return True
    finally:
        staged.unlink(missing_ok=True)


# -- known_hosts -----------------------------------------------------------------------------------
