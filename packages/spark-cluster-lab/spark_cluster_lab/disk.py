"""A disk of a node's own, whose power can be cut: what was not synced is then lost.

Nodes usually have a folder of this machine for a disk, whose files survive everything but a power
cut of the machine itself. A node that was reset with a disk of its own has an ext4 file system
(with the usual options) in an image file on a loop device instead. `cut` ends it as a power cut
does, by ext4's own shutdown without a flush of its log (EXT4_IOC_SHUTDOWN, which file system tests
use for this): nothing more reaches the device, and the next mount recovers from the log. What the
device was given before stays, as on a disk without a volatile cache.
"""

from __future__ import annotations

import fcntl
import os
import struct
import time
from pathlib import Path

from spark_cluster_lab.artefact import mounts_below, unmount
from spark_cluster_lab.layout import Layout, NodeLayout
from spark_cluster_lab.shell import run

SIZE = 16 * 1024**3
"""Bytes of the image, which is sparse: it takes what is written to it."""

LOOPS = Path("/sys/block")
SHUTDOWN = 0x8004587D
"""EXT4_IOC_SHUTDOWN: _IOR('X', 125, __u32)."""
NO_LOG_FLUSH = 2
"""EXT4_GOING_FLAGS_NOLOGFLUSH."""


def why_not() -> str:
    """Return why nodes cannot have disks of their own on this machine; empty when they can."""
    if not Path("/dev/loop-control").exists():
        return "this machine has no loop devices (/dev/loop-control)"
    if "\text4\n" not in Path("/proc/filesystems").read_text():
        return "this machine's kernel has no ext4"
    return ""


def make(node: NodeLayout) -> None:
    """Make a new, empty disk; what the node was before must be gone."""
    node.directory.mkdir(parents=True, exist_ok=True)
    with node.image.open("wb") as image:
        image.truncate(SIZE)
    run(["mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1", node.image])


def attach(node: NodeLayout) -> None:
    """Mount the node's disk, if it has one of its own."""
    if node.image.exists() and not mounts_below(node.disk):
        node.disk.mkdir(exist_ok=True)
        run(["mount", "-t", "ext4", "-o", "loop", node.image, node.disk])


def detach(node: NodeLayout, timeout: float = 5.0) -> None:
    """Unmount it, and let go of the image: it must not be mounted twice.

    Where someone's mount namespace still holds it, as a process that was started meanwhile can,
    the image is exchanged for a copy, and goes with its holder.
    """
    unmount(node.disk)
    deadline = time.monotonic() + timeout
    while node.image in [image for _, image in _loops()]:
        if time.monotonic() > deadline:
            staged = node.image.with_suffix(".copy")
            run(["cp", "--sparse=always", node.image, staged])
            staged.replace(node.image)
        time.sleep(0.02)


def remove(node: NodeLayout) -> None:
    """Throw the disk away."""
    detach(node)
    node.image.unlink(missing_ok=True)
    if node.disk.is_dir():
        node.disk.rmdir()


def sync(node: NodeLayout) -> None:
    """Have all of it on the image, as after an installation."""
    if mounts_below(node.disk):
        run(["sync", "--file-system", node.disk])


def cut(node: NodeLayout) -> None:
    """Let nothing more reach the disk. The node's processes are to be stopped before."""
    handle = os.open(node.disk, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(handle, SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
    finally:
        os.close(handle)


def leftovers(layout: Layout) -> list[str]:
    """Loop devices with an image of this lab."""
    images = {node.image for node in layout.nodes()}
    return [f"loop device {loop}" for loop, image in _loops() if image in images]


def _loops() -> list[tuple[str, Path]]:
    """The loop devices that are in use, and their images (one that is gone is `... (deleted)`)."""
    found = []
    for file in LOOPS.glob("loop*/loop/backing_file"):
        try:
            name = file.read_text().rstrip("\n")
        except OSError:
            continue  # it was given back meanwhile
        found.append((file.parts[-3], Path(name)))
    return found
