"""The paths of the lab and the names of its networks: the only place for both."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

DEFAULT_STATE = Path("/var/cache/spark-cluster/lab")
STATE_VARIABLE = "SPARK_CLUSTER_LAB"

BRIDGE = "br-spark"
SUBNET = "10.89.0.0/24"
GATEWAY = "10.89.0.1"
CABLES = "spark-cables"
"""Network namespace with the far ends of the fabric ports: the cables between the nodes."""
NEIGHBOUR = "spark-neighbour"
"""Network namespace of a machine next to the nodes, which tests make and take away."""
RULE_COMMENT = "spark-cluster-lab"

MANAGEMENT = "enP7s7"
FABRIC = ("enp1s0f1np1", "enP2p1s0f1np1")
"""The twins of the cabled ConnectX-7 port."""
UNCABLED = ("enp1s0f0np0", "enP2p1s0f0np0")

USER = "nvidia"
PASSWORD = "spark"  # noqa: S105  a lab node's user, reachable from this machine only
IMAGE_TAG = "spark-vllm:lab"
DEFAULT_NODES = 2
MAX_NODES = 4
"""What 24 GiB of memory hold with an engine on each."""


@dataclass(frozen=True)
class NodeLayout:
    """Paths and addresses of one node; `number` counts from 1."""

    state: Path
    number: int

    @property
    def name(self) -> str:
        return f"spark{self.number}"

    @property
    def address(self) -> str:
        return f"{GATEWAY.rsplit('.', 1)[0]}.{10 + self.number}"

    @property
    def group(self) -> str:
        """Its name among control groups: labs in folders of different names have their own."""
        return f"{self.state.name}-{self.name}"

    @property
    def directory(self) -> Path:
        return self.state / "nodes" / self.name

    @property
    def root(self) -> Path:
        """The node's file system, mounted while the lab is up."""
        return self.directory / "root"

    @property
    def image(self) -> Path:
        """The node's disk, when it has one of its own (see disk.py)."""
        return self.directory / "disk.img"

    @property
    def disk(self) -> Path:
        """The mount point of the node's own disk."""
        return self.directory / "disk"

    @property
    def storage(self) -> Path:
        """The folder with everything that the node has written."""
        return self.disk if self.image.exists() else self.directory

    @property
    def upper(self) -> Path:
        return self.storage / "upper"

    @property
    def work(self) -> Path:
        return self.storage / "work"

    @property
    def docker(self) -> Path:
        """Bound over /var/lib/docker: overlayfs does not stack on overlayfs."""
        return self.storage / "docker"

    @property
    def host_keys(self) -> Path:
        """The host keys, which outlive the node's file system, so that known_hosts stays valid."""
        return self.directory / "ssh"

    @property
    def known_hosts(self) -> Path:
        """The node's present keys; the lab's known_hosts may be behind, on purpose."""
        return self.directory / "known_hosts"

    @property
    def console(self) -> Path:
        return self.directory / "console.log"

    @property
    def lock(self) -> Path:
        """Held by the node's supervisor for as long as it lives."""
        return self.directory / "supervisor.lock"

    @property
    def powered(self) -> Path:
        """The file that exists while the node has power: its end of each cable is alive."""
        return self.directory / "powered"

    @property
    def lower_record(self) -> Path:
        """The file that names the tree that the overlay was made over."""
        return self.directory / "lower"

    @property
    def port(self) -> str:
        """The end of the management cable that is on the bridge."""
        return f"lan-{self.name}"

    def cable(self, interface: str) -> str:
        """The far end of a fabric port, in the namespace of the cables."""
        return f"{self.name}-{(*FABRIC, *UNCABLED).index(interface)}"


@dataclass(frozen=True)
class Layout:
    """The lab's state directory."""

    state: Path

    @classmethod
    def default(cls) -> Layout:
        return cls(Path(os.environ.get(STATE_VARIABLE) or DEFAULT_STATE))

    @property
    def prepared(self) -> Path:
        return self.state / "prepared"

    @property
    def key(self) -> Path:
        return self.state / "key"

    @property
    def known_hosts(self) -> Path:
        return self.state / "known_hosts"

    @property
    def lock(self) -> Path:
        return self.state / "lock"

    @property
    def pulled(self) -> Path:
        """The file that names the fabric ports whose cable is pulled."""
        return self.state / "pulled"

    @property
    def forwarding(self) -> Path:
        """The file with the machine's forwarding settings from before the lab came up."""
        return self.state / "forwarding.json"

    def nodes(self, count: int = MAX_NODES) -> list[NodeLayout]:
        return [NodeLayout(self.state, number) for number in range(1, count + 1)]
