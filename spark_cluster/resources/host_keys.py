"""SSH host keys, which only one machine may have.

Some makers' images were delivered with them already made, so that all machines shared them
(CVE-2026-24218).
"""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from spark_cluster.resources.base import InvalidResource, Resource, State
from spark_cluster.resources.ssh_key import KINDS, generate

if TYPE_CHECKING:
    from spark_cluster.agent.host import Host


@dataclass(frozen=True)
class HostKeys(Resource):
    """SSH host keys that are none of the others'; those that are shared are made anew.

    sshd goes on with the old ones until it is reloaded: declare a Service with `restart_when`.
    Connections that are open stay.

    Args:
        taken: public host keys of other machines, `TYPE BASE64`.

    Example:
        HostKeys(taken=("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI...",))
    """

    noun = "host keys"
    reverts = "sshd shows the keys of now until it is reloaded; then accept the old ones with "
    reverts += "`spark-cluster trust --replace`"

    taken: tuple[str, ...] = field(default=(), kw_only=True)

    def validate(self) -> None:
        if isinstance(self.taken, str):
            raise InvalidResource("HostKeys: taken is a list of public keys")

    @property
    def name(self) -> str:
        return "/etc/ssh"

    def desired(self) -> State:
        return {"shared": []}

    def observe(self, host: Host) -> State:
        taken = {" ".join(key.split()[:2]) for key in self.taken}
        keys = {
            kind: (host.read(f"{_path(kind)}.pub") or b"").decode().split()[:2] for kind in KINDS
        }
        return {"shared": [kind for kind, words in keys.items() if " ".join(words) in taken]}

    def converge(self, host: Host, actual: State) -> None:
        for kind in actual["shared"]:
            host.progress(f"making a new {kind} host key")
            folder = host.path("/etc/ssh")
            with tempfile.TemporaryDirectory(dir=folder, prefix=".key-") as scratch:
                comment = f"root@{(host.read('/etc/hostname') or b'').decode().strip()}"
                private, public = generate(host, Path(scratch) / "key", kind, comment)
            host.write(_path(kind), private, mode=0o600)
            host.write(f"{_path(kind)}.pub", public, mode=0o644)


def _path(kind: str) -> str:
    return f"/etc/ssh/ssh_host_{kind}_key"
