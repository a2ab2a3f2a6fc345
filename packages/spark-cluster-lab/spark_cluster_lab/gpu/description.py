"""What a node is: its GPU, and what it sees of the machine. Written by `up`, read by its boot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spark_cluster.node import durable
from spark_cluster_lab.gpu.devices import Gpu
from spark_cluster_lab.gpu.layout import GpuNodeLayout

OF_THE_MACHINE = {
    "devices": "device files", "mounts": "mounts", "in_memory": "where disks are kept",
    "way_out": "the way out", "name_servers": "name servers", "links": "programs",
    "libraries": "folders of libraries",
}  # fmt: skip
"""Fields that follow from the machine and not from what the user has asked for."""


@dataclass(frozen=True)
class Description:
    """A node.

    Attributes:
        gpu: its GPU.
        devices: names in /dev that it gets.
        mounts: mount points of the machine that it sees, outer ones first.
        shares: files and folders that the user wants it to see.
        in_memory: what it writes is kept in memory, and gone when it is off.
        way_out: it reaches what the machine reaches.
        name_servers: addresses for /etc/resolv.conf.
        hosts: address to name of all nodes.
        links: program to the machine's own, for those that are not in the usual folders.
        libraries: folders of the driver's libraries that ldconfig does not know.
    """

    gpu: Gpu
    devices: tuple[str, ...]
    mounts: tuple[str, ...] = ()
    shares: tuple[str, ...] = ()
    in_memory: bool = False
    way_out: bool = False
    name_servers: tuple[str, ...] = ()
    hosts: dict[str, str] | None = None
    links: dict[str, str] | None = None
    libraries: tuple[str, ...] = ()

    def write(self, node: GpuNodeLayout) -> None:
        """Keep it in the node's folder."""
        node.directory.mkdir(parents=True, exist_ok=True)
        text = json.dumps(asdict(self), indent=1) + "\n"
        durable.write_file(node.description, text.encode(), 0o644)


def read(path: Path) -> Description | None:
    """Return what `write` has kept; None without it, or where another version has written it."""
    lists = ("devices", "mounts", "shares", "name_servers", "libraries")
    try:
        data: dict[str, Any] = json.loads(path.read_text())
        data.update({name: tuple(data[name]) for name in lists})
        return Description(**{**data, "gpu": Gpu(**data["gpu"])})
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def asked_differently(
    before: Sequence[Description | None], wanted: Sequence[Description]
) -> list[str]:
    """Return in what nodes that are there differ from those that the user asks for."""
    if len(before) != len(wanted):
        return [f"nodes: {len(before)} exist, {len(wanted)} are asked for"]
    found = []
    for number, (was, new) in enumerate(zip(before, wanted, strict=True), start=1):
        if was is None:
            found.append(f"gpu{number} was made by another version of spark-cluster")
            continue
        if was.gpu.uuid != new.gpu.uuid:
            found.append(f"gpu{number} has GPU {was.gpu.uuid}, {new.gpu.uuid} is asked for")
        if was.shares != new.shares:
            seen, asked = (", ".join(shares) or "nothing" for shares in (was.shares, new.shares))
            found.append(f"gpu{number} is shown {seen}, --share asks for {asked}")
        if was.hosts != new.hosts:
            found.append(f"gpu{number} has other addresses")
    return found


def changed_since(before: Sequence[Description | None], wanted: Sequence[Description]) -> list[str]:
    """Return what of the machine has changed since nodes booted that are there."""
    pairs = [(was, new) for was, new in zip(before, wanted, strict=True) if was]
    return [
        words
        for name, words in OF_THE_MACHINE.items()
        if any(getattr(was, name) != getattr(new, name) for was, new in pairs)
    ]
