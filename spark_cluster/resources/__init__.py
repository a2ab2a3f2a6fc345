"""All resources, by the names that roles and playbooks use; each is imported when it is used.

A resource is the desired state of one thing: a frozen dataclass, declared on the laptop, that
observes and changes the thing on the node through `Host` (`base` has the idea, `file` and `unit`
bases to build on). Standard library only. A new kind is one file named like its class, with a line
here, for type checkers; nothing else of the package needs to know it.
"""

from __future__ import annotations

from pathlib import Path
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
from spark_cluster.resources.base import Resource, class_name, resource_class

__all__ = [
    "InvalidResource",
    "LaptopFile",
    "Missing",
    "Resource",
    "ResourceError",
    "Secret",
    "Skip",
    "Unknown",
]

if TYPE_CHECKING:
    from spark_cluster.resources.authorized_key import AuthorizedKey as AuthorizedKey
    from spark_cluster.resources.built_image import BuiltImage as BuiltImage
    from spark_cluster.resources.clock_cap import ClockCap as ClockCap
    from spark_cluster.resources.command import Command as Command
    from spark_cluster.resources.container import Container as Container
    from spark_cluster.resources.directory import Directory as Directory
    from spark_cluster.resources.disk_space import DiskSpace as DiskSpace
    from spark_cluster.resources.file import File as File
    from spark_cluster.resources.group import Group as Group
    from spark_cluster.resources.hold import Hold as Hold
    from spark_cluster.resources.host_keys import HostKeys as HostKeys
    from spark_cluster.resources.hostname import Hostname as Hostname
    from spark_cluster.resources.hosts_entry import HostsEntry as HostsEntry
    from spark_cluster.resources.hub_model import HubModel as HubModel
    from spark_cluster.resources.image import Image as Image
    from spark_cluster.resources.json_keys import JsonKeys as JsonKeys
    from spark_cluster.resources.kernel_module import KernelModule as KernelModule
    from spark_cluster.resources.line import Line as Line
    from spark_cluster.resources.machine_id import MachineId as MachineId
    from spark_cluster.resources.netplan import Netplan as Netplan
    from spark_cluster.resources.nft_table import NftTable as NftTable
    from spark_cluster.resources.package import Package as Package
    from spark_cluster.resources.reboot import Reboot as Reboot
    from spark_cluster.resources.self_signed_certificate import (
        SelfSignedCertificate as SelfSignedCertificate,
    )
    from spark_cluster.resources.service import Service as Service
    from spark_cluster.resources.ssh_key import SshKey as SshKey
    from spark_cluster.resources.swap import Swap as Swap
    from spark_cluster.resources.sysctl import Sysctl as Sysctl
    from spark_cluster.resources.tuned_kernels import TunedKernels as TunedKernels
    from spark_cluster.resources.unit import Unit as Unit
    from spark_cluster.resources.unused_programs import UnusedPrograms as UnusedPrograms
    from spark_cluster.resources.user import User as User
    from spark_cluster.resources.virtual_environment import VirtualEnvironment as VirtualEnvironment
else:
    _MODULES = {path.stem for path in Path(__file__).parent.glob("[a-z]*.py")} - {"base"}
    __all__.extend(map(class_name, sorted(_MODULES)))


def __getattr__(name: str) -> Any:
    found = resource_class(name)
    if found is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return found
