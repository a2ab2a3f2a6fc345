"""Swap switched off, now and at every boot."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from spark_cluster.node.host import Host
from spark_cluster.node.values import InvalidResource
from spark_cluster.resources.base import Resource, State, lines_of
from spark_cluster.resources.file import unified

FSTAB = "/etc/fstab"
_LINE = re.compile(r"^\s*[^#\s]\S*\s+\S+\s+swap\s")
_MARK = "# switched off by spark-cluster: "


@dataclass(frozen=True)
class Swap(Resource):
    """Swap switched off: nothing is swapped to now, and /etc/fstab enables none at the next boot.

    Lines of /etc/fstab become comments; swap files and partitions stay where they are.

    Args:
        state: `off`; what was switched off can be brought back by hand (`swapon -a`).

    Raises:
        ResourceError: what is in swap does not fit into memory.

    Example:
        Swap(state="off")
    """

    reverts = "swap stays off until the next boot, or `swapon -a`"

    state: str = field(default="off", kw_only=True)

    def validate(self) -> None:
        if self.state != "off":
            raise InvalidResource(f"Swap: state {self.state!r} is not off")

    def desired(self) -> State:
        return {"in_use": [], "at_boot": []}

    def observe(self, host: Host) -> State:
        rows = lines_of((host.read("/proc/swaps") or b"").decode(errors="replace"))[1:]
        lines = [line for line in self._fstab(host) if _LINE.match(line)]
        return {
            "in_use": [row.split()[0] for row in rows if row.split()],
            "at_boot": [line.split()[0] for line in lines],
        }

    def converge(self, host: Host, actual: State) -> None:
        if actual["at_boot"]:
            host.write(FSTAB, self._after(host))
            host.run(("systemctl", "daemon-reload"), timeout=120).check("systemctl daemon-reload")
        for device in actual["in_use"]:
            host.progress(f"swapoff {device}")
            host.run(("swapoff", device), timeout=600).check(
                f"swapoff {device}", "free memory first: spark-cluster vram shows who holds it"
            )

    def plan(self, host: Host, actual: State) -> None:
        host.overlay.files[FSTAB] = self._after(host)

    def diff(self, host: Host, actual: State) -> str:
        return unified(FSTAB, host.read(FSTAB) or b"", self._after(host))

    def _fstab(self, host: Host) -> list[str]:
        content = host.read(FSTAB) or b""
        return lines_of(content.decode(errors="surrogateescape"))

    def _after(self, host: Host) -> bytes:
        lines = [_MARK + line if _LINE.match(line) else line for line in self._fstab(host)]
        return "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")
