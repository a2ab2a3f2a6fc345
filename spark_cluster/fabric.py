"""The link between the nodes, proven with traffic: full-size packets, and bandwidth over RDMA."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spark_cluster.cluster import Link, Spark
from spark_cluster.errors import VerificationFailed

if TYPE_CHECKING:
    from spark_cluster.engine.session import Session

HEADERS = 28
"""Bytes of IP and ICMP around the payload of a ping."""

GOOD_GBITS = 85.0
"""One twin's bandwidth, Gb/s; healthy ones do 92 to 97, and 111 with an RDMA MTU of 4096."""

DEGRADED_GBITS = 30.0
"""A degraded ConnectX-7 does 8 to 25 Gb/s, while link and PCIe look healthy."""

PORT = 18515
SECONDS = 2


@dataclass(frozen=True)
class Hop:
    """One twin from one node to another."""

    source: Spark
    target: Spark
    ours: Link
    theirs: Link

    def __str__(self) -> str:
        return (
            f"{self.source.name} {self.ours.interface} ({self.ours.address.ip}) to "
            f"{self.target.name} {self.theirs.interface} ({self.theirs.address.ip})"
        )


@dataclass(frozen=True)
class Bandwidth:
    """What one twin does in one direction, Gb/s."""

    hop: Hop
    gbits: float

    @property
    def verdict(self) -> str:
        """`good`, `low` or `degraded`."""
        if self.gbits >= GOOD_GBITS:
            return "good"
        return "low" if self.gbits >= DEGRADED_GBITS else "degraded"


def hops(nodes: Sequence[Spark]) -> list[Hop]:
    """Every twin from every node to every other one that has an address in the same subnet."""
    return [
        Hop(source, target, ours, theirs)
        for source in nodes
        for target in nodes
        if source.name != target.name
        for ours in source.links
        for theirs in target.links
        if ours.address.network == theirs.address.network
    ]


def ping_argv(hop: Hop, size: int) -> list[str]:
    """One packet of so many bytes that must not be cut to pieces."""
    own, other = str(hop.ours.address.ip), str(hop.theirs.address.ip)
    payload = str(size - HEADERS)
    return ["ping", "-n", "-c", "1", "-W", "2", "-M", "do", "-s", payload, "-I", own, other]


def ping(session: Session, found: Sequence[Hop]) -> list[VerificationFailed]:
    """Send a full-size packet along every hop of one node, all at once; what does not get through.

    Args:
        session: the agent of the node that all of `found` begin at.
    """
    argvs = [ping_argv(hop, hop.source.mtu) for hop in found]
    waiting = [session.submit("run", argv=argv, timeout=10.0) for argv in argvs]
    replies = [pending.wait() for pending in waiting]
    bad = [hop for hop, reply in zip(found, replies, strict=True) if reply["status"] != 0]
    return [failure for hop in bad if (failure := _again(session, hop)) is not None]


def _again(session: Session, hop: Hop) -> VerificationFailed | None:
    """The first packet may go while addresses are learned; so once more, and then a small one."""
    done = session.run(ping_argv(hop, hop.source.mtu), timeout=10)
    if done.status == 0:
        return None
    small = session.run(ping_argv(hop, 84), timeout=10)
    if small.status == 0:
        return VerificationFailed(
            f"packets of {hop.source.mtu} bytes do not get from {hop}, small ones do",
            where=hop.source.name,
            hint="an MTU is smaller on the way: `ip link` on both nodes, and the switch if any; "
            "spark-cluster provision --tags network sets that of the nodes",
        )
    said = (done.stdout + done.stderr).strip().splitlines()[-1:] or ["no answer"]
    return VerificationFailed(
        f"nothing gets from {hop}: {said[0]}",
        where=hop.source.name,
        hint="is the cable in the same port of both? spark-cluster facts shows the links",
    )


def measure(server: Session, client: Session, hop: Hop) -> float:
    """Bandwidth of one twin with ib_write_bw, Gb/s; from `hop.source` (client) to `hop.target`.

    Raises:
        VerificationFailed: it could not be measured.
    """
    listening = server.submit("run", argv=_bw_argv(hop.target, hop.theirs), timeout=SECONDS + 20.0)
    argv = [*_bw_argv(hop.source, hop.ours), str(hop.theirs.address.ip)]
    for _ in range(10):
        time.sleep(0.2)  # the server has to come up first, and says nothing when it has
        done = client.run(argv, timeout=SECONDS + 15.0)
        if done.status == 0 or "connect" not in done.stdout + done.stderr:
            break
    gbits = parse_bandwidth(done.stdout)
    if gbits is None:
        server.run(["pkill", "-f", f"ib_write_bw .*-p {PORT}"])
    listening.wait()
    if gbits is None:
        said = (done.stderr + done.stdout).strip().splitlines()[-1:] or ["it said nothing"]
        raise VerificationFailed(f"ib_write_bw from {hop}: {said[0]}", where=hop.source.name)
    return gbits


def _bw_argv(node: Spark, link: Link) -> list[str]:
    index = next((h.gid_index for h in node.facts.hcas if h.name == link.hca), None)
    gid = [] if index is None else ["-x", str(index)]
    options = ["-F", "--report_gbits", "-D", str(SECONDS), "-p", str(PORT)]
    return ["ib_write_bw", "-d", str(link.hca), *gid, *options]


def parse_bandwidth(text: str) -> float | None:
    """The average of ib_write_bw's last row: bytes, iterations, peak, average, message rate."""
    rows = re.findall(r"^\s*\d+\s+\d+\s+[\d.]+\s+([\d.]+)\s+[\d.]+\s*$", text, re.MULTILINE)
    return float(rows[-1]) if rows else None
