"""Decides on the key that a host shows, as strictly as OpenSSH with StrictHostKeyChecking=yes.

paramiko looks up one key of a kind; here it is given no known keys at all, so that every key comes
to this check. Certificates are not asked for: a host that has one shows its plain key.
"""

from __future__ import annotations

import base64
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import paramiko

from spark_cluster.errors import Failed
from spark_cluster.facts.public_keys import kind_of
from spark_cluster.runner import known_hosts
from spark_cluster.runner.known_hosts import HostName, Line, Verdict
from spark_cluster.runner.ssh_limits import LimitedTransport

if TYPE_CHECKING:
    from spark_cluster.runner.ssh_config import HostSettings

_REVOCATION_LIST = b"SSHKRL\n\0"


@dataclass(frozen=True)
class Judgement:
    """The verdict on a host's key, and why.

    Attributes:
        line: the line that decided; for `CHANGED` one that names another key.
        revoked_by: `FILE:LINE` or `FILE`, for `REVOKED`.
    """

    verdict: Verdict
    blob: bytes
    line: Line | None = None
    revoked_by: str = ""

    @property
    def kind(self) -> str:
        """The key's kind, e.g. `ssh-ed25519`."""
        return kind_of(self.blob)

    @property
    def fingerprint(self) -> str:
        """The key's, as `ssh-keygen -l` prints it."""
        return known_hosts.fingerprint(self.blob)


@dataclass(frozen=True)
class HostKeyCheck:
    """The known host keys and authorities of one host.

    Args:
        name: under which it is looked up.
        files: known_hosts files.
        revoked: files of keys that are never accepted.
        preferred: host key algorithms in the user's order; empty takes the library's.
    """

    name: HostName
    files: tuple[Path, ...]
    revoked: tuple[Path, ...] = ()
    preferred: tuple[str, ...] = ()
    _read: dict[str, list[Line]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    @classmethod
    def of(cls, settings: HostSettings, extra: Path | None) -> HostKeyCheck:
        """The check of a host.

        Args:
            extra: a known_hosts file next to those of the user's configuration.

        Raises:
            Failed: the configuration has a KnownHostsCommand, which is not run: a key that it
                would call revoked must not be accepted.
        """
        if settings.known_hosts_command:
            raise Failed(
                f"KnownHostsCommand is not supported ({settings.known_hosts_command})",
                where="ssh_config",
                hint=f"for host {settings.host} set it to none, and put the keys into known_hosts",
            )
        files = (*settings.user_known_hosts, *settings.global_known_hosts)
        return cls(
            HostName.of(settings.host, settings.port, settings.host_key_alias),
            (*files, extra) if extra is not None and extra not in files else files,
            settings.revoked_host_keys,
            settings.host_key_algorithms,
        )

    def order(self, supported: Sequence[str]) -> tuple[str, ...]:
        """The host key algorithms to ask for, of those that the library supports.

        It begins a connection: the files are read now, and `judge` goes by the same lines.
        """
        self._read.clear()
        preferred = [name for name in self.preferred if name in supported]
        return known_hosts.algorithms(self._lines(self.name.name), preferred or supported)

    def judge(self, key: paramiko.PKey) -> Judgement:
        """The verdict on the key that the host has proved to hold.

        Raises:
            Failed: a file of revoked keys cannot be read.
        """
        blob = key.asbytes()
        revoked_by = self._revoked_by(blob)
        if revoked_by:
            return Judgement(Verdict.REVOKED, blob, revoked_by=revoked_by)
        # Under the name with the port, and when that is not known without it, as ssh does.
        found = self._under(self.name.name, blob)
        if found.verdict is Verdict.NEW and self.name.without_port:
            other = self._under(self.name.without_port, blob)
            if other.verdict in (Verdict.KNOWN, Verdict.REVOKED):
                return other
        return found

    # -- inside ----------------------------------------------------------------------------------

    def _lines(self, name: str) -> list[Line]:
        """Return what the files say of a name; each is read once a connection, by a process."""
        if name not in self._read:
            self._read[name] = known_hosts.lines_of(name, self.files)
        return self._read[name]

    def _under(self, name: str, blob: bytes) -> Judgement:
        verdict, line = known_hosts.judge(self._lines(name), blob)
        revoked_by = line.place if line is not None and verdict is Verdict.REVOKED else ""
        return Judgement(verdict, blob, line, revoked_by)

    def _revoked_by(self, blob: bytes) -> str:
        for path in self.revoked:
            try:
                content = path.read_bytes()
            except OSError as error:
                raise Failed(
                    f"RevokedHostKeys cannot be read: {error.strerror}",
                    where=str(path),
                    hint="no host key is accepted without it, as with ssh",
                ) from None
            if content.startswith(_REVOCATION_LIST):
                if _in_revocation_list(path, blob):
                    return str(path)
                continue
            for number, line in enumerate(content.split(b"\n"), start=1):
                found = known_hosts.key_in(b"* " + line)
                if found is not None and found[1] == blob:
                    return f"{path}:{number}"
        return ""


def _in_revocation_list(path: Path, blob: bytes) -> bool:
    """Ask ssh-keygen, which reads its own binary lists: 0 not revoked, 1 revoked."""
    kind = kind_of(blob)
    with tempfile.NamedTemporaryFile("w", suffix=".pub") as file:
        file.write(f"{kind} {base64.b64encode(blob).decode()}\n")
        file.flush()
        argv = ["ssh-keygen", "-Q", "-f", str(path), file.name]
        try:
            done = subprocess.run(
                argv, capture_output=True, timeout=known_hosts.LIMIT_S, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            done = None
    if done is not None and done.returncode == 0:
        return False
    if done is not None and b"REVOKED" in done.stdout:
        return True
    raise Failed(
        "RevokedHostKeys cannot be read by ssh-keygen",
        where=str(path),
        hint="no host key is accepted without it, as with ssh",
    )


class HostKeyRefused(Exception):
    """A host's key that is not accepted."""

    def __init__(self, judgement: Judgement) -> None:
        super().__init__(judgement.verdict.value)
        self.judgement = judgement


class StrictPolicy(paramiko.MissingHostKeyPolicy):
    """Asks the check about every key, because its client knows none."""

    def __init__(self, check: HostKeyCheck) -> None:
        self._check = check

    def missing_host_key(
        self, _client: paramiko.SSHClient, _hostname: str, key: paramiko.PKey
    ) -> None:
        """Raise HostKeyRefused unless the key is known."""
        judgement = self._check.judge(key)
        if judgement.verdict is not Verdict.KNOWN:
            raise HostKeyRefused(judgement)


class Transport(LimitedTransport):
    """Asks for the host key that is known of a host with several."""

    def __init__(self, sock: Any, *, check: HostKeyCheck, **options: Any) -> None:
        super().__init__(sock, **options)
        self._algorithms = check.order(self.get_security_options().key_types)

    @property
    def preferred_keys(self) -> tuple[str, ...]:
        """Host key algorithms; paramiko's own property adds certificates behind all others."""
        return self._algorithms
