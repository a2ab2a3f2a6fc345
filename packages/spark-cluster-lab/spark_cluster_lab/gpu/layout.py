"""The paths of the GPU lab and the names of its networks: none is one of the ordinary lab's."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from spark_cluster_lab.layout import NodeLayout

DEFAULT_STATE = Path("/var/cache/spark-cluster/lab-gpus")
STATE_VARIABLE = "SPARK_CLUSTER_LAB_GPUS"
MAX_NODES = 8

BRIDGE = "br-spark-gpu"
FABRIC_BRIDGE = "br-spark-gpu-f"
SUBNET = "10.90.0"
FABRIC_SUBNET = "10.90.1"
PREFIX = 24
MTU = 9000
"""Of the fabric, bytes; that of an inventory without `fabric.mtu`."""

MANAGEMENT = "eth0"
FABRIC = "fabric0"
GATEWAY = f"{SUBNET}.1"
"""The machine's own address on the management bridge."""


@dataclass(frozen=True)
class GpuNodeLayout(NodeLayout):
    """Paths and addresses of one node; `number` counts from 1."""

    @property
    def name(self) -> str:
        return f"gpu{self.number}"

    @property
    def address(self) -> str:
        return f"{SUBNET}.{10 + self.number}"

    @property
    def fabric_address(self) -> str:
        """The node's address on the link."""
        return f"{FABRIC_SUBNET}.{10 + self.number}"

    @property
    def disk(self) -> Path:
        """A file system in memory, where overlayfs cannot write to that of the state folder."""
        return self.directory / "memory"

    @property
    def description(self) -> Path:
        """The file that says which GPU the node has and what it sees of the machine."""
        return self.directory / "node.json"

    @property
    def leader(self) -> Path:
        """The file with the number and the start of the node's process 1, for inventories."""
        return self.directory / "leader"

    @property
    def port(self) -> str:
        """The end of the management cable that is on the bridge."""
        return f"lan-{self.name}"

    @property
    def fabric_port(self) -> str:
        """The end of the fabric cable that is on its bridge."""
        return f"fab-{self.name}"


@dataclass(frozen=True)
class GpuLayout:
    """The GPU lab's state directory."""

    state: Path

    @classmethod
    def default(cls) -> GpuLayout:
        return cls(Path(os.environ.get(STATE_VARIABLE) or DEFAULT_STATE))

    @property
    def forwarding(self) -> Path:
        """The file with the machine's forwarding settings from before the lab came up."""
        return self.state / "forwarding.json"

    @property
    def inventory(self) -> Path:
        """The inventory of the nodes that are up, whatever their number."""
        return self.state / "inventory.yaml"

    def nodes(self, count: int = MAX_NODES) -> list[GpuNodeLayout]:
        return [GpuNodeLayout(self.state, number) for number in range(1, count + 1)]
