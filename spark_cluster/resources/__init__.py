"""All resources, by the names that roles and playbooks use; each is imported when it is used.

A resource is the desired state of one thing: a frozen dataclass, declared on the laptop, that
observes and changes the thing on the node through `Host` (`base` has the idea, `file` and `unit`
bases to build on). Standard library only. A new kind is one file named like its class, with a line
here and in `__all__`; nothing else of the package needs to know it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from spark_cluster.node.values import (
    InvalidResource,
    LaptopFile,
    Missing,
    ResourceError,
    Secret,
    Skip,
    Unknown,
)
from spark_cluster.resources.base import Resource, resource_class

if TYPE_CHECKING:
    from spark_cluster.resources.authorized_key import AuthorizedKey
    from spark_cluster.resources.built_image import BuiltImage
    from spark_cluster.resources.clock_cap import ClockCap
    from spark_cluster.resources.command import Command
    from spark_cluster.resources.container import Container
    from spark_cluster.resources.directory import Directory
    from spark_cluster.resources.disk_space import DiskSpace
    from spark_cluster.resources.file import File
    from spark_cluster.resources.group import Group
    from spark_cluster.resources.hold import Hold
    from spark_cluster.resources.host_keys import HostKeys
    from spark_cluster.resources.hostname import Hostname
    from spark_cluster.resources.hosts_entry import HostsEntry
    from spark_cluster.resources.hub_model import HubModel
    from spark_cluster.resources.image import Image
    from spark_cluster.resources.json_keys import JsonKeys
    from spark_cluster.resources.kernel_module import KernelModule
    from spark_cluster.resources.line import Line
    from spark_cluster.resources.machine_id import MachineId
    from spark_cluster.resources.netplan import Netplan
    from spark_cluster.resources.nft_table import NftTable
    from spark_cluster.resources.package import Package
    from spark_cluster.resources.reboot import Reboot
    from spark_cluster.resources.self_signed_certificate import SelfSignedCertificate
    from spark_cluster.resources.service import Service
    from spark_cluster.resources.ssh_key import SshKey
    from spark_cluster.resources.swap import Swap
    from spark_cluster.resources.sysctl import Sysctl
    from spark_cluster.resources.tuned_kernels import TunedKernels
    from spark_cluster.resources.unit import Unit
    from spark_cluster.resources.unused_programs import UnusedPrograms
    from spark_cluster.resources.user import User
    from spark_cluster.resources.virtual_environment import VirtualEnvironment

__all__ = [
    "AuthorizedKey",
    "BuiltImage",
    "ClockCap",
    "Command",
    "Container",
    "Directory",
    "DiskSpace",
    "File",
    "Group",
    "Hold",
    "HostKeys",
    "Hostname",
    "HostsEntry",
    "HubModel",
    "Image",
    "InvalidResource",
    "JsonKeys",
    "KernelModule",
    "LaptopFile",
    "Line",
    "MachineId",
    "Missing",
    "Netplan",
    "NftTable",
    "Package",
    "Reboot",
    "Resource",
    "ResourceError",
    "Secret",
    "SelfSignedCertificate",
    "Service",
    "Skip",
    "SshKey",
    "Swap",
    "Sysctl",
    "TunedKernels",
    "Unit",
    "Unknown",
    "UnusedPrograms",
    "User",
    "VirtualEnvironment",
]


def __getattr__(name: str) -> Any:
    found = resource_class(name)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found
