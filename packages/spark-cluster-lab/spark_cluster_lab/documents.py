"""The documents that `lab` prints as JSON, one class for each command."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NodeStatus:
    """A node of the lab.

    Attributes:
        name: of the node.
        address: its IPv4 address on the lab's bridge.
        state: as systemd says it (running, starting), or off.
    """

    name: str
    address: str
    state: str


@dataclass(frozen=True)
class GpuNodeStatus:
    """A node of the lab of GPUs.

    Attributes:
        name: of the node.
        address: its IPv4 address on the lab's bridge.
        state: `running`, `off`, or `orphaned` (running with nothing to start it again).
        gpu: the name of its GPU.
        uuid: of its GPU.
    """

    name: str
    address: str
    state: str
    gpu: str
    uuid: str


@dataclass(frozen=True)
class GpuLabStatus:
    """The lab of GPUs (`lab up --gpus`, and `gpus` of `lab status`).

    Attributes:
        state: `up`, `partly up` (a node is off), `down`, or `broken` (to be cleaned away).
        nodes: those that are up or off.
        directory: the lab's state directory.
        inventory: an inventory of the nodes that are up.
    """

    state: str
    nodes: list[GpuNodeStatus]
    directory: str
    inventory: str


@dataclass(frozen=True)
class LabStatus:
    """The lab (`lab status`).

    Attributes:
        state: `up`, `partly up` (a node is off), `down`, or `broken` (to be cleaned away).
        nodes: those whose file systems are mounted, on or off.
        prepared: what nodes are booted from, by name: whether it is there.
        not_possible: why nothing can be prepared on this machine; empty when it can.
        directory: the lab's state directory.
        key: the private key that the nodes accept.
        known_hosts: the file with the nodes' host keys.
        gpus: the nodes of `lab up --gpus`, which are a lab of their own.
    """

    state: str
    nodes: list[NodeStatus]
    prepared: dict[str, bool]
    directory: str
    key: str
    known_hosts: str
    not_possible: str = ""
    gpus: GpuLabStatus | None = None


@dataclass(frozen=True)
class Ended:
    """The document of `lab down`.

    Attributes:
        state: the lab's state now.
        changed: whether anything was up.
    """

    state: str
    changed: bool


@dataclass(frozen=True)
class PreparedFiles:
    """The document of `lab prepare`: what was made.

    Attributes:
        image: path of the container image, as `docker load` takes it.
        model: folder of the model.
    """

    image: str
    model: str


@dataclass(frozen=True)
class Packages:
    """The document of `lab tools --list`.

    Attributes:
        packages: of the system, that the lab calls.
    """

    packages: list[str]


@dataclass(frozen=True)
class InstalledPackages(Packages):
    """The document of `lab tools`.

    Attributes:
        packages: of the system, that the lab calls.
        installed: those that were missing.
    """

    installed: list[str]


@dataclass(frozen=True)
class ResetNode:
    """The document of `lab reset`.

    Attributes:
        node: its name.
        changed: always true.
    """

    node: str
    changed: bool


@dataclass(frozen=True)
class Broken:
    """The document of `lab break NAME`.

    Attributes:
        name: of the breakage.
        node: that is broken.
        finds: checks of doctor that find it.
    """

    name: str
    node: str
    finds: list[str]


@dataclass(frozen=True)
class KnownBreakage:
    """A breakage (`lab break --list`).

    Attributes:
        name: as `lab break` takes it.
        what: what it does.
        finds: checks of doctor that find it, some of them with --probe only.
        broken: names of the nodes that are broken so now.
    """

    name: str
    what: str
    finds: list[str]
    broken: list[str]


@dataclass(frozen=True)
class Breakages:
    """The document of `lab break --list`.

    Attributes:
        breakages: all of them.
    """

    breakages: list[KnownBreakage]


@dataclass(frozen=True)
class Repaired:
    """The document of `lab repair`.

    Attributes:
        repaired: breakages and their nodes.
    """

    repaired: list[str]
