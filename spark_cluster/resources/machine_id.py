"""The machine id, which only one machine may have.

Some makers' images were delivered with it already made, so that all machines shared it
(CVE-2026-24218).
"""

from __future__ import annotations

import re
import uuid
from dataclasses import dataclass, field

from spark_cluster.node.host import Host
from spark_cluster.resources.base import Resource, State

MACHINE_ID = "/etc/machine-id"
DBUS_ID = "/var/lib/dbus/machine-id"


@dataclass(frozen=True)
class MachineId(Resource):
    """A machine id that differs from the others'. A new one is used from the next boot on.

    Args:
        taken: machine ids of other machines.

    Example:
        MachineId(taken=("4c4c4544004b3510804cb4c04f4e3232",))
    """

    reverts = "the current machine id is used until the next boot"

    taken: tuple[str, ...] = field(default=(), kw_only=True)

    @property
    def name(self) -> str:
        return MACHINE_ID

    def desired(self) -> State:
        return {"id": "its own"}

    def observe(self, host: Host) -> State:
        text = (host.read(MACHINE_ID) or b"").decode(errors="replace").strip()
        if not re.fullmatch("[0-9a-f]{32}", text):
            return {"id": text or "none"}
        return {"id": "the same as another machine's" if text in self.taken else "its own"}

    def converge(self, host: Host, actual: State) -> None:
        text = f"{uuid.uuid4().hex}\n".encode()
        host.write(MACHINE_ID, text, mode=0o444)
        copy = host.path(DBUS_ID)
        if copy.is_file() and not copy.is_symlink():
            host.write(DBUS_ID, text)

    def plan(self, host: Host, actual: State) -> None:
        host.overlay.opaque[MACHINE_ID] = self.id
