"""All resources, by the names that roles and playbooks use; each is imported when it is used."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_cluster.resources.base import (
    InvalidResource,
    Missing,
    Resource,
    ResourceError,
    Secret,
    Unknown,
    resource_class,
)

if TYPE_CHECKING:
    from spark_cluster.resources.authorized_key import AuthorizedKey
    from spark_cluster.resources.command import Command
    from spark_cluster.resources.container import Container
    from spark_cluster.resources.directory import Directory
    from spark_cluster.resources.file import File
    from spark_cluster.resources.group import Group
    from spark_cluster.resources.image import Image
    from spark_cluster.resources.line import Line
    from spark_cluster.resources.netplan import Netplan
    from spark_cluster.resources.package import Package
    from spark_cluster.resources.service import Service
    from spark_cluster.resources.user import User

__all__ = [
    "AuthorizedKey",
    "Command",
    "Container",
    "Directory",
    "File",
    "Group",
    "Image",
    "InvalidResource",
    "Line",
    "Missing",
    "Netplan",
    "Package",
    "Resource",
    "ResourceError",
    "Secret",
    "Service",
    "Unknown",
    "User",
]


def __getattr__(name: str) -> Any:
    found = resource_class(name)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found
