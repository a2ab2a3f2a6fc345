"""The folder on the node of what compilers and the hub keep: a restart is then no cold start."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import Field

from spark_cluster.config.folders import CACHE_ROOT
from spark_cluster.config.schema import Schema
from spark_cluster.config.topology import Node
from spark_cluster.resources import Command, Directory, DiskSpace, Resource


class Settings(Schema):
    """Settings of the role `caches`."""

    root: str = CACHE_ROOT
    """folder on the node; the same on all nodes that serve"""
    owner: str = "root"
    """owner of the folder; what is below it is root's, whose containers write the caches of their
    image only"""
    group: str | None = None
    """group of the folder; null leaves it as it is"""
    min_free_gib: float = Field(default=5.0, ge=0)
    """GiB that must be free there, or nothing is started; 0 disables the check"""
    mount_point: str | None = None
    """a folder that must be a mount point (a second disk), so that nothing is written into the
    empty folder below it when the disk is not mounted"""


def role(node: Node, settings: Settings) -> Iterator[Resource]:  # noqa: ARG001
    """The disk that is there and has room, and the folder.

    The hub cache below it is made with the first model, the caches of an image with its container.
    """
    if settings.mount_point is not None:
        yield Command(
            f"{settings.mount_point} is mounted", ("mountpoint", settings.mount_point), reads=True
        )
    if settings.min_free_gib:
        yield DiskSpace(settings.root, settings.min_free_gib, purpose="caches of the engine")
    yield Directory(settings.root, mode=0o755, owner=settings.owner, group=settings.group)
