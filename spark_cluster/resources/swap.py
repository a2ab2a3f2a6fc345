"""Swap switched off, now and at every boot."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from spark_cluster.node.host import Host
from spark_cluster.resources.base import State, checks, lines_of, one_of
from spark_cluster.resources.file import EditedFile, joined

FSTAB = "/etc/fstab"
_LINE = re.compile(r"^\s*[^#\s]\S*\s+\S+\s+swap\s")
_MARK = "# switched off by spark-cluster: "


@dataclass(frozen=True)
class Swap(EditedFile):
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

    edits = FSTAB
    valid = checks(state=one_of("off"))

    state: str = field(default="off", kw_only=True)

    def desired(self) -> State:
        return {"in_use": [], "at_boot": []}

    def observe(self, host: Host) -> State:
        rows = lines_of((host.read("/proc/swaps") or b"").decode(errors="replace"))[1:]
        lines = [line for line in self.lines(host) or [] if _LINE.match(line)]
        return {
            "in_use": [row.split()[0] for row in rows if row.split()],
            "at_boot": [line.split()[0] for line in lines],
        }

    def converge(self, host: Host, actual: State) -> None:
        if actual["at_boot"]:
            host.write(FSTAB, self.text_after(host))
            host.run(("systemctl", "daemon-reload"), timeout=120).check("systemctl daemon-reload")
        for device in actual["in_use"]:
            host.progress(f"swapoff {device}")
            host.run(("swapoff", device), timeout=600).check(
                f"swapoff {device}", "free memory first: spark-cluster vram shows who holds it"
            )

    def text_after(self, host: Host) -> bytes:
        lines = self.lines(host) or []
        return joined(_MARK + line if _LINE.match(line) else line for line in lines)
