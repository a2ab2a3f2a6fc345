"""What makes a node's file system its own: names, units, and where the driver is."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from spark_cluster_lab.gpu.description import Description
from spark_cluster_lab.gpu.layout import GpuNodeLayout
from spark_cluster_lab.shell import run

KEPT = {
    "dbus.service", "dbus.socket", "systemd-journal-flush.service", "systemd-journald.service",
    "systemd-journald.socket", "systemd-journald-dev-log.socket", "systemd-tmpfiles-setup.service",
}  # fmt: skip
"""Units of the distribution's that start by themselves; all others of the machine's do not."""

UNITS = "etc/systemd/system"
VENDOR = ("usr/lib/systemd/system", "lib/systemd/system", "usr/local/lib/systemd/system")
GENERATORS = ("usr/lib/systemd/system-generators", "lib/systemd/system-generators",
              "usr/local/lib/systemd/system-generators")  # fmt: skip
NOT_THE_MACHINES = (UNITS, "etc/systemd/system.control", "etc/systemd/system.attached",
                    "etc/systemd/system-generators", "etc/spark-cluster",
                    "var/lib/spark-cluster")  # fmt: skip
"""Folders of which a fresh node has empty ones."""

PROGRAMS = ("usr/bin", "usr/local/bin")
"""Folders of which Docker's client is taken out: its daemon would not start on an overlay."""

MARK = "etc/spark-cluster-gpu-lab"
"""The file that a node has which has been filled before."""

LIBRARIES = "etc/ld.so.conf.d/00-spark-cluster-gpu-lab.conf"


def systemd(root: Path = Path("/")) -> Path | None:
    """Return the service manager of a file system; None without one."""
    places = (root / "usr/lib/systemd/systemd", root / "lib/systemd/systemd")
    return next((place for place in places if place.exists()), None)


def fill(root: Path, node: GpuNodeLayout, found: Description) -> None:
    """Make the file system this node's; what it has become stays, and the machine's goes."""
    if not (root / MARK).exists():
        forget_machine(root)
        write(root / "etc/machine-id", f"{uuid.uuid4().hex}\n")
        write(root / MARK, "")
    write(root / "etc/hostname", f"{node.name}\n")
    lines = ["127.0.0.1 localhost", "::1 localhost"]
    lines += [f"{address} {name}" for address, name in (found.hosts or {}).items()]
    write(root / "etc/hosts", "".join(f"{line}\n" for line in lines))
    servers = "".join(f"nameserver {server}\n" for server in found.name_servers)
    write(root / "etc/resolv.conf", servers)
    stop_from_starting(root)
    for name, target in (found.links or {}).items():
        link(root / "usr/local/bin" / name, target)
    if found.libraries:
        write(root / LIBRARIES, "".join(f"{folder}\n" for folder in found.libraries))
        run(["ldconfig", "-r", root])


def forget_machine(root: Path) -> None:
    """Take out what the machine is: its units, disks, keys, and its own life as a node."""
    for folder in NOT_THE_MACHINES:
        shutil.rmtree(root / folder, ignore_errors=True)
    (root / UNITS).mkdir(parents=True)
    units = next(folder for folder in VENDOR if (root / folder).is_dir())
    link(root / UNITS / "default.target", f"/{units}/multi-user.target")
    for file in ("etc/fstab", "etc/crypttab"):
        write(root / file, "")
    docker = (root / folder / "docker" for folder in PROGRAMS)
    keys = (root / "etc/ssh").glob("ssh_host_*")
    for path in (*docker, *keys, root / "var/lib/dbus/machine-id"):
        path.unlink(missing_ok=True)


def stop_from_starting(root: Path) -> None:
    """Take the units away that packages start by themselves, and all generators of units."""
    for folder in VENDOR:
        for entry in (root / folder).glob("*.wants/*"):
            if entry.name not in KEPT:
                entry.unlink(missing_ok=True)
    for folder in GENERATORS:
        for entry in (root / folder).glob("*"):
            link(root / "etc/systemd/system-generators" / entry.name, "/dev/null")


def link(path: Path, target: str) -> None:
    """Make a symbolic link, in place of whatever is there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def write(path: Path, text: str) -> None:
    """Write a file, in place of whatever is there: a link may lead out of the node."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    path.write_text(text)
