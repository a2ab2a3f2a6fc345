"""SSH host keys, which only one machine may have.

Some makers' images were delivered with them already made, so that all machines shared them
(CVE-2026-24218).
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from spark_cluster.node import paths
from spark_cluster.node.durable import sync, sync_folder
from spark_cluster.node.host import Host
from spark_cluster.resources.base import Resource, State
from spark_cluster.resources.ssh_key import KINDS, generate


@dataclass(frozen=True)
class HostKeys(Resource):
    """SSH host keys that differ from the others'; those that are shared are generated again.

    sshd goes on with the old ones until it is reloaded: declare a Service with `restart_when`.
    Connections that are open stay. A machine that knows the node would refuse it from then on:
    with `prepare` the new keys are only made, so that it learns of them first.

    Args:
        taken: public host keys of other machines, `TYPE BASE64`.
        prepare: make the new keys ready in `/etc/ssh/spark-cluster-next`, and leave those in
            force; without it they are taken from there, if they are there.

    Example:
        HostKeys(taken=("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI...",))
    """

    reverts = "sshd presents the current keys until it is reloaded; then accept the old ones with "
    reverts += "`spark-cluster trust --replace`"

    taken: tuple[str, ...] = field(default=(), kw_only=True)
    prepare: bool = field(default=False, kw_only=True)

    @property
    def name(self) -> str:
        return "/etc/ssh"

    def desired(self) -> State:
        return {"shared": []} if self.prepare else {"shared": [], "prepared": []}

    def observe(self, host: Host) -> State:
        taken = {" ".join(key.split()[:2]) for key in self.taken}
        keys = {kind: _public(host.read(f"{_path(kind)}.pub")) for kind in KINDS}
        shared = [kind for kind, key in keys.items() if key in taken]
        prepared = [kind for kind in KINDS if _prepared(host, kind) is not None]
        if self.prepare:
            return {"shared": [kind for kind in shared if kind not in prepared]}
        return {"shared": shared, "prepared": prepared}

    def converge(self, host: Host, actual: State) -> None:
        for kind in actual["shared"]:
            found = None if self.prepare else _prepared(host, kind)
            if found is None:
                found = _make(host, kind, keep=self.prepare)
            if not self.prepare:
                host.write(_path(kind), found[0], mode=0o600)
                host.write(f"{_path(kind)}.pub", found[1], mode=0o644)
        if not self.prepare:  # last: until then a run that was killed goes on with the same keys
            with contextlib.suppress(FileNotFoundError):
                shutil.rmtree(host.path(paths.NEXT_HOST_KEYS))


def _path(kind: str) -> str:
    return f"/etc/ssh/ssh_host_{kind}_key"


def _public(content: bytes | None) -> str:
    return " ".join((content or b"").decode(errors="replace").split()[:2])


def _prepared(host: Host, kind: str) -> tuple[bytes, bytes] | None:
    """Private and public half of a key that was made ready."""
    private, public = (
        host.read(f"{paths.NEXT_HOST_KEYS}/{kind}/key{suffix}") for suffix in ("", ".pub")
    )
    return (private, public) if private is not None and public is not None else None


def _make(host: Host, kind: str, *, keep: bool) -> tuple[bytes, bytes]:
    """A new key; with `keep` it is put into `paths.NEXT_HOST_KEYS`, whole or not at all.

    It is not in the journal: nothing of the system is replaced by it.
    """
    host.progress(f"making a new {kind} host key")
    comment = f"root@{(host.read('/etc/hostname') or b'').decode().strip()}"
    folder = host.path(paths.NEXT_HOST_KEYS if keep else "/etc/ssh")
    folder.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".key-") as scratch:
        made = Path(scratch) / kind
        made.mkdir(mode=0o700)
        found = generate(host, made / "key", kind, comment)
        if keep:
            for name in ("key", "key.pub", "."):
                sync(made / name)
            shutil.rmtree(folder / kind, ignore_errors=True)  # half of one
            made.rename(folder / kind)
            sync_folder(folder)
    return found
