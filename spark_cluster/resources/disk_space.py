"""Free space on a disk, asked for before it is needed."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from spark_cluster.node.host import Host
from spark_cluster.node.values import ResourceError
from spark_cluster.resources.base import Resource, State, absolute, checks

GIB = 1024**3


def _gib(size: float) -> str:
    fits = not isinstance(size, bool) and 0 < size < 1e6
    return "" if fits else f"{size!r} is not a number of GiB"


@dataclass(frozen=True)
class DiskSpace(Resource):
    """So much is free on the disk that a path is (or will be) on. It only looks, and fails.

    Args:
        path: a folder; the nearest one above counts when it is not there yet.
        free_gib: GiB (1024^3 bytes) that must be free for a user who is not root.
        purpose: what it is for, for the message: `the model gemma-4`.

    Raises:
        ResourceError: less is free; with what takes most of it to look for.

    Example:
        DiskSpace("/var/lib/docker", 40, purpose="container images")
    """

    valid = checks(path=absolute, free_gib=_gib)

    path: str
    free_gib: float
    purpose: str = field(default="", kw_only=True)

    def desired(self) -> State:
        return {"enough": True}

    def observe(self, host: Host) -> State:
        folder = host.path(self.path)
        while not folder.is_dir():
            folder = folder.parent
        disk = os.statvfs(folder)
        free = disk.f_bavail * disk.f_frsize / GIB
        if free < self.free_gib:
            shown = "/" + str(folder.relative_to(host.root)).lstrip(".")
            size = disk.f_blocks * disk.f_frsize / GIB
            purpose = f" for {self.purpose}" if self.purpose else ""
            raise ResourceError(
                f"the disk of {self.path} has {free:.1f} GiB free of {size:.0f} GiB; "
                f"{self.free_gib:g} GiB are needed{purpose}",
                f"`du -xh {shown} | sort -h | tail` shows what takes it; "
                "`docker image prune -a` removes unused images",
            )
        return {"enough": True}

    def converge(self, host: Host, actual: State) -> None:
        """Change nothing: it only observes."""
