"""What this machine must have for a lab of GPUs, and where it has the driver."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from spark_cluster.errors import Failed, UsageError
from spark_cluster_lab import cgroup
from spark_cluster_lab.gpu import seed
from spark_cluster_lab.gpu.mounts import Mount, file_system
from spark_cluster_lab.machine import SYSTEM_PATH, require_root_on_linux, which
from spark_cluster_lab.shell import run

TOOLS = {
    "ip": "iproute2", "nsenter": "util-linux", "setpriv": "util-linux", "setsid": "util-linux",
    "pivot_root": "util-linux", "mount": "mount", "umount": "mount",
}  # fmt: skip
"""Every program that the lab of GPUs calls on this machine, and the package that has it."""

NO_UPPER = {
    "9p", "ceph", "cifs", "ecryptfs", "exfat", "fuse", "fuseblk", "nfs", "nfs4", "overlay", "smb3",
    "vfat", "virtiofs",
}  # fmt: skip
"""Kinds of file systems to which overlayfs cannot write, or not reliably: `fuse.sshfs`, too."""

DRIVER_LIBRARY = "libcuda.so.1"


def require() -> None:
    """Raises:
    UsageError: a lab of GPUs cannot work on this machine.
    """
    require_root_on_linux()
    missing = sorted({package for tool, package in TOOLS.items() if not which(tool)})
    if missing:
        raise UsageError(
            f"a lab of GPUs needs {', '.join(missing)}",
            hint=f"apt-get install {' '.join(missing)}",
        )
    if seed.systemd() is None:
        raise UsageError(
            "a lab of GPUs boots systemd in each node, and this machine has no "
            "/usr/lib/systemd/systemd",
            hint="apt-get install --no-install-recommends systemd dbus; it need not run here",
        )
    if not has_overlay():
        raise UsageError(
            "a lab of GPUs needs overlayfs, which this kernel has not",
            hint="`grep overlay /proc/filesystems` must show it",
        )
    if not has_groups():
        raise UsageError(
            "a lab of GPUs needs control groups, version 2, and none are mounted",
            hint=f"mount -t cgroup2 cgroup2 {cgroup.TREE}",
        )


def has_overlay() -> bool:
    """Return whether the kernel has overlayfs, perhaps as a module."""
    known = Path("/proc/filesystems")
    if "\toverlay\n" not in known.read_text() and (modprobe := which("modprobe")):
        run([modprobe, "overlay"], check=False)
    return "\toverlay\n" in known.read_text()


def has_groups() -> bool:
    """Return whether processes can be put into groups of version 2."""
    return any((tree / "cgroup.controllers").exists() for tree in cgroup.trees())


def keeps_in_memory(mounts: list[Mount], state: Path) -> bool:
    """Return whether what nodes write has to be in memory, for the state's folder cannot take it.

    Raises:
        Failed: the folder cannot be made.
    """
    try:
        state.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Failed(
            f"the lab's folder cannot be made: {error.strerror}", where=str(state)
        ) from None
    return file_system(mounts, state.resolve()).partition(".")[0] in NO_UPPER


def links() -> dict[str, str]:
    """Return where the machine has programs that nodes do not find in the usual folders."""
    found = {}
    for name in ("nvidia-smi", "python3"):
        there = shutil.which(name, path=SYSTEM_PATH)
        here = shutil.which(name) if name != "python3" else os.path.realpath(sys.executable)
        if there is None and here is not None:
            found[name] = here
    return found


def libraries() -> list[str]:
    """Return folders of the driver's libraries that programs find by LD_LIBRARY_PATH only."""
    if ldconfig := which("ldconfig"):
        known = run([ldconfig, "-p"], check=False).stdout
        if re.search(rf"^\s*{re.escape(DRIVER_LIBRARY)} ", known, re.MULTILINE):
            return []
    return [str(folder) for folder in _likely() if (folder / DRIVER_LIBRARY).exists()]


def _likely() -> Iterable[Path]:
    """Return folders in which containers and drivers have the library."""
    given = os.environ.get("LD_LIBRARY_PATH", "").split(":")
    folders = [Path(folder) for folder in given if folder.startswith("/")]
    if program := shutil.which("nvidia-smi"):
        folders += [Path(program).resolve().parent.parent / name for name in ("lib64", "lib")]
    folders += [Path("/usr/local/nvidia/lib64"), Path("/usr/local/nvidia/lib")]
    return dict.fromkeys(folders)
