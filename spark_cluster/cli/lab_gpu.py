"""The nodes with a GPU in the commands of `lab`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spark_cluster.cli.lab_output import Clock, say
from spark_cluster.lab.documents import GpuLabStatus
from spark_cluster.lab.gpu import GpuLab

INVENTORIES = {1: "lab-gpu", 2: "lab-gpus"}
"""Those that ship, by the number of nodes."""


def up(
    nodes: int | None, shares: Sequence[Path], clock: Clock, *, share_gpu: bool, fresh: bool
) -> None:
    """Carry `lab up --gpus` out, and print what is up."""
    lab = GpuLab.default()
    changed = lab.up(nodes, shares=shares, share_gpu=share_gpu, fresh=fresh, progress=clock)
    found = lab.status()
    if changed:
        clock("the lab of GPUs is up")
        text = "\n".join(lines(found)[1:])
    else:
        text = f"the lab of GPUs is up already: {', '.join(node.name for node in found.nodes)}"
    say(found, text, changed=changed)


def down(clock: Clock, *, wipe: bool) -> bool:
    """Switch the nodes with a GPU off; returns whether anything was there."""
    return GpuLab.default().down(wipe_disks=wipe, progress=clock)


def status() -> GpuLabStatus:
    """Return what is up of them."""
    return GpuLab.default().status()


def lines(found: GpuLabStatus) -> list[str]:
    """Return the lines of a status: the lab, its nodes, and how to use them."""
    shown = [f"lab of GPUs: {found.state}  ({found.directory})"]
    shown += [f"  {node.name}  {node.address}  {node.state}  {node.gpu}" for node in found.nodes]
    name = INVENTORIES.get(len(found.nodes), found.inventory)
    return [*shown, f"  spark-cluster -i {name} facts"] if found.nodes else shown
