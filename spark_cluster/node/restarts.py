"""Pending restarts: resources that must act again, also when the run that knows it dies first."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from spark_cluster.node.durable import write_file


@dataclass(frozen=True)
class PendingRestarts:
    """The pending restarts of a node, each a file that a power cut leaves there.

    Args:
        folder: where the files are.
        boot_id: returns the id of this boot.
    """

    folder: Path
    boot_id: Callable[[], str]

    def notify(self, resource: str) -> None:
        """Note that `resource` must act again."""
        marker = self._marker(resource)
        marker.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_file(marker, f"{resource}\n{self.boot_id()}\n".encode())

    def pending(self, resource: str) -> bool:
        """Return whether `resource` has a restart pending."""
        return self._marker(resource).exists()

    def since(self, resource: str) -> str:
        """Return the id of the boot in which it was noted that `resource` must act again."""
        lines = self._marker(resource).read_text().splitlines()
        return lines[1] if len(lines) > 1 else ""

    def clear(self, resource: str) -> None:
        """Clear the pending restart of `resource`: it has acted."""
        self._marker(resource).unlink(missing_ok=True)

    def _marker(self, resource: str) -> Path:
        return self.folder / hashlib.sha256(resource.encode()).hexdigest()[:24]
