"""The results of the probes: traffic between two nodes, and the endpoint's answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from spark_cluster.engine.link_check import Cabling
from spark_cluster.node.health import Completion


@dataclass(frozen=True)
class Ping:
    """Pings over one link in one direction.

    Attributes:
        link: `spark1 enp1s0f1np1 -> spark2`.
        small, full: whether a small and a full-size one came back; None when it could not be tried.
        message: last line that the full-size one printed.
    """

    link: str
    small: bool | None
    full: bool | None
    message: str = ""


@dataclass(frozen=True)
class Transfer:
    """A TCP transfer over one link in one direction; Gbit/s.

    Attributes:
        rate: over the link; None when there was none.
        own: what the sending node does to itself over its loopback: the most that can be seen.
        message: why there is no rate.
    """

    link: str
    rate: float | None
    own: float | None = None
    message: str = ""


@dataclass(frozen=True)
class Rdma:
    """`ib_write_bw` over one link; Gbit/s."""

    link: str
    rate: float | None
    message: str = ""


@dataclass(frozen=True)
class Answer:
    """The endpoint's answer.

    Attributes:
        health: HTTP status of /health, 0 without an answer.
        completion: what came of a question.
        expected: what the text should have in it.
    """

    health: int
    completion: Completion
    expected: str


@dataclass(frozen=True)
class OpenPort:
    """A port that answers the laptop, and is neither sshd's nor the endpoint's.

    Attributes:
        program: what listens there, as the node says; empty when it does not tell.
        engines: it is one of those that the engine is set to use.
    """

    node: str
    port: int
    program: str
    engines: bool


@dataclass(frozen=True)
class PortScan:
    """The result of a port scan from the laptop.

    Attributes:
        tried: ports that were tried, of all nodes together.
        complete: whether those were all; otherwise the time was up.
    """

    open: tuple[OpenPort, ...]
    tried: int
    complete: bool
    seconds: float = 0.0


@dataclass(frozen=True)
class Probed:
    """The results of all probes; None for what was not tried, with the reason in `why_not`.

    Attributes:
        cabling: where the ports lead; none where one port of each node is up, or of two nodes.
    """

    full_size: int = 8972
    cabling: tuple[Cabling, ...] | None = None
    pings: tuple[Ping, ...] | None = None
    transfers: tuple[Transfer, ...] | None = None
    rdma: tuple[Rdma, ...] | None = None
    answer: Answer | None = None
    ports: PortScan | None = None
    why_not: Mapping[str, str] = field(default_factory=dict)
