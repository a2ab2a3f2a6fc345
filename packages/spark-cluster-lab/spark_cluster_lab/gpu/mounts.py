"""The machine's mounts that its nodes see too: overlayfs shows one file system, not those in it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

KERNEL = {
    "autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts",
    "devtmpfs", "efivarfs", "fusectl", "hugetlbfs", "mqueue", "nsfs", "proc", "pstore",
    "rpc_pipefs", "securityfs", "selinuxfs", "sysfs", "tracefs",
}  # fmt: skip
"""Kinds of file systems that a node has its own of, or none."""

OWN = ("/boot", "/dev", "/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/proc", "/run", "/sys",
       "/tmp", "/var/lib/containers", "/var/lib/docker")  # fmt: skip  # noqa: S108
"""Places where a node has its own, or must not see the machine's."""


ESCAPED = re.compile(r"\\([0-7]{3})")
"""A space, tab, newline or backslash, as the kernel writes it in octal."""


NOT_SHOWN = "is not shown"
"""After the name of a mount that a node cannot have, on its console."""


@dataclass(frozen=True)
class Mount:
    """A mount of this machine."""

    point: Path
    kind: str


def parse(mountinfo: str) -> list[Mount]:
    """Return the mounts in the text of /proc/self/mountinfo, in order.

    >>> parse("36 35 98:0 / /usr/local/nvidia ro - ext4 /dev/vdb ro")
    [Mount(point=PosixPath('/usr/local/nvidia'), kind='ext4')]
    """
    found = []
    for line in filter(None, mountinfo.split("\n")):  # other ends of lines may be in a name
        fields, _, rest = line.partition(" - ")
        point = ESCAPED.sub(lambda found: chr(int(found[1], 8)), fields.split(" ")[4])
        found.append(Mount(Path(point), rest.split(" ")[0]))
    return found


def shown(mounts: Iterable[Mount], hidden: Iterable[Path] = ()) -> list[Path]:
    """Return the mount points that nodes see, outer ones first.

    Args:
        hidden: folders whose mounts are not shown either.
    """
    never = [*map(Path, OWN), *hidden]
    points: list[Path] = []
    for mount in mounts:
        inside = any(mount.point == place or place in mount.point.parents for place in never)
        if mount.point == Path("/") or mount.kind in KERNEL or inside:
            continue
        if mount.point not in points:
            points.append(mount.point)
    return sorted(points, key=lambda point: len(point.parts))


def file_system(mounts: Sequence[Mount], path: Path) -> str:
    """Return the kind of file system that a path is on."""
    found = ""
    longest = -1
    for mount in mounts:  # a later mount on the same point is on top
        inside = mount.point == path or mount.point in path.parents
        if inside and len(mount.point.parts) >= longest:
            found, longest = mount.kind, len(mount.point.parts)
    return found
