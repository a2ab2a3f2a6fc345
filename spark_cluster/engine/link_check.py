"""The link between the nodes, proven with traffic: full-size packets, and bandwidth over RDMA.

Where the ports of three and more nodes lead (to a switch, or from node to node in a ring) is found
out with frames. Two ports with a carrier are two cables to the other one of two Sparks. Of three
they can be a ring, which looks the same on each node; a frame that every port sends shows who is at
the other end.
"""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from spark_cluster.config.topology import Link, Node, port_of, ports_up
from spark_cluster.errors import Failed, SparkClusterError, VerificationFailed
from spark_cluster.runner.parallel import in_parallel
from spark_cluster.runner.session import Session, ask_each

T = TypeVar("T")

HEADERS = 28
"""Bytes of IP and ICMP around the payload of a ping."""

SMALL = 84
"""Bytes of an ordinary ping with its headers."""

PING_S = 15.0
"""Longest wait for the pings of one node."""

GOOD_GBITS = 85.0
"""One twin's bandwidth, Gb/s; healthy ones do 92 to 97, and 111 with an RDMA MTU of 4096."""

DEGRADED_GBITS = 30.0
"""A degraded ConnectX-7 does 8 to 25 Gb/s, while link and PCIe look healthy."""

PORT = 18515
SECONDS = 2


@dataclass(frozen=True)
class Hop:
    """A twin from one node to another."""

    source: Node
    target: Node
    ours: Link
    theirs: Link

    def __str__(self) -> str:
        return (
            f"{self.source.name} {self.ours.interface} ({self.ours.address.ip}) to "
            f"{self.target.name} {self.theirs.interface} ({self.theirs.address.ip})"
        )


@dataclass(frozen=True)
class LinkPing:
    """Pings along one hop.

    Attributes:
        small, full: whether a small and a full-size one came back; None without the program.
        message: last line of the full-size one.
    """

    hop: Hop
    small: bool | None
    full: bool | None
    message: str = ""


@dataclass(frozen=True)
class Bandwidth:
    """The bandwidth of one twin in one direction, Gb/s."""

    hop: Hop
    gbits: float

    @property
    def verdict(self) -> str:
        """`good`, `low` or `degraded`."""
        if self.gbits >= GOOD_GBITS:
            return "good"
        return "low" if self.gbits >= DEGRADED_GBITS else "degraded"


def hops(nodes: Sequence[Node]) -> list[Hop]:
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


def checked_hops(nodes: Sequence[Node]) -> list[Hop]:
    """Every twin from each node to the next one, and from the last node to the first.

    So each port sends and receives, over a cable or a switch, and what is tried grows with the
    nodes and not with their square. Of two nodes it is every hop.
    """
    names = [node.name for node in nodes]
    following = dict(zip(names, (*names[1:], *names[:1]), strict=True))
    return [hop for hop in hops(nodes) if hop.target.name == following[hop.source.name]]


def rounds(found: Sequence[Hop]) -> list[list[Hop]]:
    """Divide hops into rounds in which no node has two, so that a round's can be measured at once.

    Those of `checked_hops` make at most three rounds for each twin, whatever the number of nodes.
    """
    divided: list[list[Hop]] = []
    for hop in found:
        ends = {hop.source.name, hop.target.name}
        for one in divided:
            if not any(ends & {other.source.name, other.target.name} for other in one):
                one.append(hop)
                break
        else:
            divided.append([hop])
    return divided


def in_rounds(found: Sequence[Hop], measured: Callable[[Hop], T]) -> list[T | SparkClusterError]:
    """Measure every hop, those of a round at once; return results, or errors, in their order."""
    outcomes: dict[str, T | SparkClusterError] = {}
    for one in rounds(found):
        outcomes |= in_parallel({str(hop): partial(measured, hop) for hop in one})
    return [outcomes[str(hop)] for hop in found]


def bandwidths(
    found: Sequence[Hop], session: Callable[[Node], Session]
) -> list[float | SparkClusterError]:
    """Measure each hop with `ib_write_bw`, in rounds: Gb/s, or why it could not be measured."""

    def measured(hop: Hop) -> float:
        return measure(session(hop.target), session(hop.source), hop)

    return in_rounds(found, measured)


def ping_argv(hop: Hop, size: int) -> list[str]:
    """Return the ping command for one packet of so many bytes that must not be fragmented."""
    own, other = str(hop.ours.address.ip), str(hop.theirs.address.ip)
    payload = str(size - HEADERS)
    return ["ping", "-n", "-c", "1", "-W", "2", "-M", "do", "-s", payload, "-I", own, other]


def pings(hops: Sequence[Hop], sessions: Mapping[str, Session]) -> list[LinkPing]:
    """Send a small and a full-size packet along every hop, all at once; resend what is lost.

    The first packet may be lost while addresses are learned.

    Args:
        sessions: the agents of the nodes that the hops begin at, by name.
    """
    first = _send(hops, sessions)
    lost = [
        n for n, answers in enumerate(first) if not all(_came(done) for done in answers.values())
    ]
    again = dict(zip(lost, _send([hops[n] for n in lost], sessions), strict=True))
    found = []
    for number, hop in enumerate(hops):
        tries = [first[number], *([again[number]] if number in again else [])]
        small, full = ([_came(answers[kind]) for answers in tries] for kind in ("small", "full"))
        if None in (*small, *full):
            found.append(LinkPing(hop, None, None, "there is no ping on the node"))
        else:
            last = tries[-1]["full"] or {}
            output = f"{last.get('stdout', '')}{last.get('stderr', '')}".strip().splitlines()
            found.append(
                LinkPing(hop, any(small), any(full), output[-1] if output else "no answer")
            )
    return found


def _send(
    hops: Sequence[Hop], sessions: Mapping[str, Session]
) -> list[dict[str, dict[str, Any] | None]]:
    """Return what ping printed for each size along each hop, in one request for each node."""
    sizes = [{"small": SMALL, "full": hop.source.mtu} for hop in hops]
    commands: dict[str, dict[str, list[str]]] = {}
    for number, hop in enumerate(hops):
        for kind, size in sizes[number].items():
            commands.setdefault(hop.source.name, {})[f"{kind} {number}"] = ping_argv(hop, size)
    asked = {name: {"commands": own, "timeout": PING_S} for name, own in commands.items()}
    answers = ask_each(sessions, "gather", asked)
    return [
        {kind: answers[hop.source.name]["commands"][f"{kind} {number}"] for kind in sizes[number]}
        for number, hop in enumerate(hops)
    ]


def _came(done: Mapping[str, Any] | None) -> bool | None:
    """Return whether a packet came back; None without the program."""
    return None if done is None else done["status"] == 0


def verify(hops: Sequence[Hop], sessions: Mapping[str, Session]) -> list[VerificationFailed]:
    """Return what full-size packets do not get through; see `pings`."""
    return [_failure(ping) for ping in pings(hops, sessions) if not ping.full]


def _failure(ping: LinkPing) -> VerificationFailed:
    hop = ping.hop
    if ping.small:
        return VerificationFailed(
            f"packets of {hop.source.mtu} bytes do not get from {hop}, small ones do",
            where=hop.source.name,
            hint=_known("mtu-differs", hop),
        )
    return VerificationFailed(
        f"no packet gets from {hop}: {ping.message}",
        where=hop.source.name,
        hint=_known("link-silent", hop),
    )


def _known(issue: str, hop: Hop) -> str:
    """Return cause and fix of a known issue of the link, for both nodes."""
    from spark_cluster.issues.entries import catalogue  # slow to import, seldom needed

    found = catalogue()[issue]
    return f"{found.cause}: {found.fix_on(f'{hop.source.name},{hop.target.name}')}"


def slow(result: Bandwidth) -> str:
    """Return what a low bandwidth means, with the known issue's cause and fix."""
    issue = "link-at-13-gbps" if result.verdict == "degraded" else "rdma-below-rate"
    return (
        f"{result.gbits:.1f} Gb/s from {result.hop}; {GOOD_GBITS:g} or more are expected. "
        f"{_known(issue, result.hop)}"
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
        last_line = (done.stderr + done.stdout).strip().splitlines()[-1:] or ["it printed nothing"]
        raise VerificationFailed(f"ib_write_bw from {hop}: {last_line[0]}", where=hop.source.name)
    return gbits


def _bw_argv(node: Node, link: Link) -> list[str]:
    index = next((h.gid_index for h in node.facts.hcas if h.name == link.hca), None)
    gid = [] if index is None else ["-x", str(index)]
    options = ["-F", "--report_gbits", "-D", str(SECONDS), "-p", str(PORT)]
    return ["ib_write_bw", "-d", str(link.hca), *gid, *options]


def parse_bandwidth(text: str) -> float | None:
    """The average of ib_write_bw's last row: bytes, iterations, peak, average, message rate."""
    number = r"[0-9]{1,15}(?:\.[0-9]{1,15})?"
    row = "[ \t]+".join((number, number, number, f"({number})", number))
    rows = re.findall(rf"^[ \t]*{row}[ \t]*$", text, re.MULTILINE)
    return float(rows[-1]) if rows else None


SWITCHED = 3
"""Nodes from which on a switch joins them; two have a cable."""

ISSUE = "link-without-switch"

LISTEN_S = 1.2
LIMIT_S = 20.0
"""Longest wait for one node's answer, seconds."""

LISTENER = "spark_cluster.node.probes:neighbours"


@dataclass(frozen=True)
class Cabling:
    """The other nodes that each port of a node reaches.

    Attributes:
        ports: port (`np0`) to the names of the nodes, sorted; ports that reach none are left out.
    """

    node: str
    ports: Mapping[str, tuple[str, ...]]

    @property
    def split(self) -> bool:
        """True if the ports lead to different nodes, so that no one port reaches them all."""
        ends = [set(names) for names in self.ports.values()]
        return len(ends) > 1 and not set.intersection(*ends)

    def __str__(self) -> str:
        ways = (f"{port} to {', '.join(names)}" for port, names in sorted(self.ports.items()))
        return f"{self.node}: {'; '.join(ways)}"


def in_doubt(nodes: Sequence[Node]) -> bool:
    """Return whether the facts leave it open: of three or more nodes one has two ports up."""
    return len(nodes) >= SWITCHED and any(len(ports_up(node.facts)) > 1 for node in nodes)


def look(nodes: Sequence[Node], sessions: Mapping[str, Session]) -> list[Cabling]:
    """Have every node send frames over its ports, and say which it has got, all at once.

    Args:
        nodes: those that are to reach each other, of which `in_doubt` holds.

    Raises:
        Failed: a node cannot do it.
    """
    token = secrets.token_hex(8)
    asked = {}
    for node in nodes:
        names = [hca.interface for twins in ports_up(node.facts).values() for hca in twins]
        words = [token, node.name, f"{LISTEN_S:g}", *names]
        asked[node.name] = {"program": LISTENER, "argv": words, "timeout": LIMIT_S}
    answers = ask_each(sessions, "run", asked)
    return [_read(name, reply, nodes) for name, reply in answers.items()]


def _read(node: str, reply: Mapping[str, object], nodes: Sequence[Node]) -> Cabling:
    """Return what a node's listener has printed, which is foreign input."""
    known = {one.name for one in nodes} - {node}
    ports: dict[str, set[str]] = {}
    try:
        for interface, other in json.loads(str(reply["stdout"])):
            if other in known:
                ports.setdefault(port_of(str(interface)), set()).add(other)
    except (ValueError, TypeError, LookupError, RecursionError):
        lines = str(reply.get("stderr", "")).strip().splitlines()
        raise Failed(
            f"cannot find out where its ports lead: {lines[-1] if lines else 'no answer'}",
            where=node,
            hint="spark-cluster doctor --only link checks each port by itself",
        ) from None
    return Cabling(node, {port: tuple(sorted(names)) for port, names in ports.items()})


def without_switch(found: Iterable[Cabling]) -> list[Cabling]:
    """Return the nodes whose ports lead to different nodes."""
    return [cabling for cabling in found if cabling.split]


def must_be_switched(nodes: Sequence[Node], session: Callable[[Node], Session]) -> None:
    """Refuse nodes that are cabled from one to the next; asks them only where that can be.

    Args:
        session: the agent of a node.

    Raises:
        Failed: they are, or a node cannot say.
    """
    if not in_doubt(nodes):
        return
    found = look(nodes, {node.name: session(node) for node in nodes})
    if split := without_switch(found):
        raise refusal(split)


def refusal(split: Sequence[Cabling]) -> SparkClusterError:
    """Return the error for nodes whose ports lead to different nodes."""
    from spark_cluster.issues.entries import catalogue  # slow to import, seldom needed

    issue = catalogue()[ISSUE]
    places = ". ".join(str(cabling) for cabling in split)
    return Failed(
        f"{issue.title}: the ports of a node lead to different nodes ({places})",
        hint=f"{issue.cause}: {issue.fix}",
    )
