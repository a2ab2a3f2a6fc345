"""Probes, which run only when they are asked for, and their checks: real traffic over the link,
a real completion.
"""

from __future__ import annotations

import json
import re
import socket
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from operator import itemgetter
from typing import TypeVar

from spark_cluster.config import fact_gathering
from spark_cluster.config.fact_gathering import LISTENERS
from spark_cluster.config.inventory import Inventory, InventoryNode
from spark_cluster.config.ports import EnginePorts, Span
from spark_cluster.config.recipe_schema import Probe
from spark_cluster.config.topology import Node, topology_of
from spark_cluster.doctor import port_scan
from spark_cluster.doctor.check import check
from spark_cluster.doctor.observations import (
    NotSeen,
    Observations,
    OpenPort,
    Ping,
    PortScan,
    Probed,
    ProbedAnswer,
    Transfer,
    Verdict,
    fail,
    ok,
    warn,
)
from spark_cluster.engine import link_check
from spark_cluster.engine.deployment import ANSWERS, probe_once, running
from spark_cluster.engine.engine import engine_of
from spark_cluster.engine.link_check import DEGRADED_GBITS, GOOD_GBITS, Cabling, Hop, without_switch
from spark_cluster.engine.proxy import DESCRIPTION
from spark_cluster.engine.runtime import ask_health
from spark_cluster.errors import Failed, SparkClusterError
from spark_cluster.node.containers import ContainerState
from spark_cluster.node.health import judge
from spark_cluster.runner.parallel import in_parallel
from spark_cluster.runner.session import Output, Pending, Session

# The TCP ports of the nodes that this laptop can reach, and what listens there.

LIMIT_S = 30.0
"""Seconds for the ports of all nodes; those of the engine are tried first."""

SSH = 22


def look(
    inventory: Inventory,
    sessions: Mapping[str, Session],
    spans: Sequence[Span] = EnginePorts().spans,
    *,
    limit_s: float = LIMIT_S,
) -> PortScan | str:
    """Try the ports of every node's management address from here; a text says why not.

    A port on which nothing listens cannot answer, so only those that the node's `ss` lists are
    tried: a firewall drops the packets to all others, and each would be waited for. Every port of a
    node without `ss` is tried.

    Args:
        spans: the engine's ports, to be tried first.
        limit_s: seconds after which no further port is tried.
    """
    nodes = [inventory.nodes[name] for name in sessions]
    hidden = [node.name for node in nodes if node.jump]
    if hidden:
        return f"{', '.join(hidden)}: behind a jump host, so this laptop cannot try the ports"
    addresses = {_address(node): node for node in nodes}
    started = time.monotonic()
    known = {node.name: listeners(sessions[node.name]) for node in nodes}
    asked = {address: known[node.name] for address, node in addresses.items()}
    done = port_scan.scan(_targets(asked, spans), limit_s=limit_s, at_once=2000)
    ports = []
    for address, port in done.open:
        node = addresses[address]
        if not _expected(inventory, node, port):
            program = (known[node.name] or {}).get(port, "")
            engines = any(low <= port <= high for low, high in spans)
            ports.append(OpenPort(node.name, port, program, engines))
    listed = None not in known.values()
    seconds = time.monotonic() - started
    return PortScan(tuple(ports), done.tried, done.complete, seconds, listed=listed)


def _targets(
    asked: Mapping[str, Mapping[int, str] | None], spans: Sequence[Span]
) -> Iterator[port_scan.Target]:
    """Yield what listens at each address, then every port of those that do not tell it."""
    for address, ports in asked.items():
        yield from ((address, port) for port in sorted(ports or ()))
    untold = [address for address, ports in asked.items() if ports is None]
    if untold:
        yield from port_scan.targets(untold, _in_order(spans))


def listeners(session: Session) -> dict[int, str] | None:
    """Port to the program that listens there, as the node's `ss` reports it; None without `ss`."""
    done = session.request("gather", commands={"ss": list(LISTENERS)})["commands"]["ss"]
    return parse_listeners(done["stdout"]) if done is not None and done["status"] == 0 else None


def parse_listeners(text: str) -> dict[int, str]:
    """Parse the output of `ss -Hltnp`; programs on loopback addresses are left out."""
    return {
        one.port: one.program
        for one in fact_gathering.listeners(text)
        if not one.address.startswith("127.0.0.") and one.address != "::1"
    }


def _in_order(spans: Iterable[Span]) -> Iterator[int]:
    """The engine's ports, the ones that programs choose, and the ones that the kernel picks."""
    first = {port for low, high in spans for port in range(low, high + 1)}
    yield from sorted(first)
    yield from (port for port in port_scan.EVERY if port not in first)


def _expected(inventory: Inventory, node: InventoryNode, port: int) -> bool:
    """sshd, and the endpoint where the inventory puts it on the network."""
    if port == (node.port or SSH):
        return True
    serve = inventory.serve
    return node.is_head and serve.bind != "loopback" and port == serve.port


def _address(node: InventoryNode) -> str:
    """The address that the name means; the name itself where it cannot be resolved."""
    try:
        return str(socket.getaddrinfo(node.address, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return node.address


# The TCP throughput between two nodes, measured with nothing but their Python.
#
# Data is not copied on either side (sendfile from memory, MSG_TRUNC), so that the link is the limit
# before the processor is; the same over a node's own loopback says where its limit lies.

STREAMS = 8
SECONDS = 1.0
PORT = 18517

RECEIVER = "spark_cluster.node.probes:receive"
SENDER = "spark_cluster.node.probes:send"

Rate = float | SparkClusterError
"""Gbit/s, or why there is no figure."""


def measure(sender: Session, receiver: Session, address: str, *, port: int = PORT) -> float:
    """Measure one transfer from one node to an address of another (or of itself); Gbit/s.

    Raises:
        Failed: there is no figure.
    """
    words = [address, str(port), str(STREAMS)]
    waiting = _start(receiver, RECEIVER, words)
    sending = _start(sender, SENDER, [*words, f"{SECONDS:g}"])
    sent, received = _end(sending), _end(waiting)
    for done in (received, sent):
        if done.status != 0:
            raise Failed((done.stderr.strip().splitlines() or ["it ended early"])[-1])
    return rate_of(received.stdout)


def rate_of(text: str) -> float:
    """Parse what the receiver printed; Gbit/s.

    >>> rate_of('{"bytes": 12500000000, "seconds": 1.0}')
    100.0

    Raises:
        Failed: it is something else.
    """
    try:
        found = json.loads(text)
        return float(found["bytes"] * 8 / max(found["seconds"], sys.float_info.epsilon) / 1e9)
    except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError):
        raise Failed(f"the receiver said {text[:80]!r}") from None


def _start(session: Session, program: str, words: list[str]) -> Pending:
    return session.submit("run", program=program, argv=words, timeout=30.0)


def _end(pending: Pending) -> Output:
    try:
        reply = pending.wait()
    except SparkClusterError as error:
        return Output(1, "", error.message)
    return Output(reply["status"], reply["stdout"], reply["stderr"])


Sessions = Mapping[str, Session]


@dataclass(frozen=True)
class Question:
    """The question to the endpoint, and the key to use.

    Attributes:
        scan: also try which ports of the nodes answer this laptop.
        spans: the engine's ports, which are tried first.
    """

    probe: Probe
    key: str | None = field(default=None, repr=False)
    scan: bool = False
    spans: tuple[Span, ...] = EnginePorts().spans


def probe(
    inventory: Inventory, nodes: Sequence[Observations], sessions: Sessions, question: Question
) -> Probed:
    """Probe everything that can be probed; what cannot has its reason in `why_not`."""
    why_not: dict[str, str] = {}
    users = {seen.node: seen.user for seen in nodes}
    facts = {seen.node: seen.facts for seen in nodes}
    known = topology_of(inventory, facts, users, facts.__getitem__)
    cabling = _cabling(list(known.values()), sessions)
    if isinstance(cabling, str):
        why_not["cabling"] = cabling
    hops, reason = _hops(list(known.values()), cabling)
    if not hops:
        why_not |= dict.fromkeys(("pings", "transfers", "rdma"), reason)
    lacking = [seen.node for seen in nodes if not _has(seen, "ib_write_bw")]
    if lacking:
        why_not.setdefault("rdma", f"there is no ib_write_bw on {', '.join(lacking)} (perftest)")
    answer = _answer(nodes, sessions, question)
    if answer is None:
        why_not["answer"] = "no server of spark-cluster runs on these nodes"
    tried = look(inventory, sessions, question.spans) if question.scan else "not asked for"
    if isinstance(tried, str):
        why_not["ports"] = tried
    return Probed(
        full_size=inventory.mtu - link_check.HEADERS,
        cabling=None if isinstance(cabling, str) else cabling,
        pings=pings(hops, sessions) if hops else None,
        transfers=transfers(hops, sessions) if hops else None,
        rdma=rdma(hops, sessions) if hops and not lacking else None,
        answer=answer,
        ports=None if isinstance(tried, str) else tried,
        why_not=why_not,
    )


def _cabling(nodes: Sequence[Node], sessions: Sessions) -> tuple[Cabling, ...] | str:
    """Look where the ports lead, if that is not clear; or the reason why that is not known."""
    if not link_check.in_doubt(nodes):
        return ()
    try:
        return tuple(link_check.look(nodes, sessions))
    except SparkClusterError as error:
        return f"{error.where}: {error.message}" if error.where else error.message


def _hops(nodes: Sequence[Node], cabling: Sequence[Cabling] | str) -> tuple[list[Hop], str]:
    """Return the hops to try, or the reason why there are none."""
    if not isinstance(cabling, str) and link_check.without_switch(cabling):
        return [], "no switch joins the nodes"  # each would be waited for in vain
    if found := link_check.checked_hops(nodes):
        return found, ""
    return [], "one node alone" if len(nodes) < 2 else "no link is up between the nodes"


def name(hop: Hop) -> str:
    """A hop in a few words."""
    return f"{hop.source.name} {hop.ours.interface} to {hop.target.name}"


def pings(hops: Sequence[Hop], sessions: Sessions) -> tuple[Ping, ...]:
    """Send small and full-size packets over every hop."""
    found = link_check.pings(hops, sessions)
    return tuple(Ping(name(one.hop), one.small, one.full, one.message) for one in found)


def transfers(hops: Sequence[Hop], sessions: Sessions) -> tuple[Transfer, ...]:
    """TCP over every hop, in rounds; first each node to itself, to compare with."""
    names = sorted({hop.source.name for hop in hops})
    own = in_parallel({n: partial(measure, sessions[n], sessions[n], "127.0.0.1") for n in names})
    ports = {str(hop): PORT + number for number, hop in enumerate(hops, start=1)}

    def measured(hop: Hop) -> float:
        sender, receiver = sessions[hop.source.name], sessions[hop.target.name]
        return measure(sender, receiver, str(hop.theirs.address.ip), port=ports[str(hop)])

    rates = link_check.in_rounds(hops, measured)
    return tuple(
        _transfer(hop, rate, own[hop.source.name]) for hop, rate in zip(hops, rates, strict=True)
    )


def rdma(hops: Sequence[Hop], sessions: Sessions) -> tuple[Transfer, ...]:
    """`ib_write_bw` over every hop, in rounds."""
    rates = link_check.bandwidths(hops, lambda node: sessions[node.name])
    return tuple(_transfer(hop, rate) for hop, rate in zip(hops, rates, strict=True))


def _transfer(hop: Hop, rate: Rate, own: Rate | None = None) -> Transfer:
    message = rate.message if isinstance(rate, SparkClusterError) else ""
    figures = [None if isinstance(one, SparkClusterError) else one for one in (rate, own)]
    return Transfer(name(hop), figures[0], message, figures[1])


def _answer(
    nodes: Sequence[Observations], sessions: Sessions, question: Question
) -> ProbedAnswer | None:
    """The endpoint's answer, asked by the node where the server runs."""

    for seen in nodes:
        for engine in _engines(seen):
            if not engine.is_server or not engine.running:
                continue
            session = sessions[seen.node]
            files = session.request("gather", files={"endpoint": DESCRIPTION})["files"]
            endpoint = running(engine.labels, files["endpoint"], question.key)
            if endpoint is None:
                continue
            _, health = ask_health(engine_of(engine), endpoint, session)
            kind = engine.kind
            reply = probe_once(session, endpoint, kind, question.probe, timeout=20)
            expected = question.probe.expect
            if kind != "chat":  # any answer of the kind is right, and its reason is no answer
                expected = "" if reply.text else ANSWERS[kind]
            return ProbedAnswer(health.status, reply, expected)
    return None


def _engines(seen: Observations) -> tuple[ContainerState, ...]:
    try:
        return seen.engines
    except NotSeen:
        return ()


def _has(seen: Observations, tool: str) -> bool:
    try:
        return seen.has(tool)
    except NotSeen:
        return False


T = TypeVar("T")

OF_OWN = 0.33
"""A link that carries less than this share of what the node does to itself is the limit."""


@check("link.cabling", needs=("frames",), effect="blocks")
def cabling(probed: Probed) -> Verdict:
    """all ports of a node lead to the same nodes"""
    found = _tried(probed, "cabling", probed.cabling)
    split = without_switch(found)
    if split:
        return fail(". ".join(map(str, split)))
    return ok(". ".join(map(str, found)) or "no third node, or one port of each is up")


@check("link.full-size-ping", needs=("pings",), effect="blocks")
def full_size_ping(probed: Probed) -> Verdict:
    """full-size frames pass over the link, both ways"""
    pings = _tried(probed, "pings", probed.pings)
    untried = [ping for ping in pings if ping.small is None]
    if untried:
        raise NotSeen(f"{untried[0].link}: {untried[0].message or 'ping could not be run'}")
    dead = [ping.link for ping in pings if not ping.small]
    if dead:
        return fail(f"no answer at all: {', '.join(dead)}", "link-silent")
    cut = [ping.link for ping in pings if not ping.full]
    if cut:
        message = f"{probed.full_size} bytes do not pass, small ones do: {', '.join(cut)}"
        return fail(message, "mtu-differs")
    return ok(f"{probed.full_size} bytes pass on {len(pings)} ways")


@check("link.transfer-rate", needs=("transfers",), effect="slows")
def transfer_rate(probed: Probed) -> Verdict:
    """each twin reaches its expected bandwidth"""
    transfers = _tried(probed, "transfers", probed.transfers)
    failed = [t for t in transfers if t.rate is None]
    if failed:
        raise NotSeen(f"{failed[0].link}: {failed[0].message or 'nothing came'}")
    shown = _rates(transfers)
    slow = [t for t in transfers if t.rate is not None and t.rate < DEGRADED_GBITS]
    for transfer in slow:
        own = transfer.own
        if own is not None and transfer.rate is not None and transfer.rate < OF_OWN * own:
            return fail(f"{shown} (a node to itself: {own:.0f})")
    if slow:
        own_text = "nothing" if slow[0].own is None else f"{slow[0].own:.0f} Gb/s"
        raise NotSeen(
            f"{shown}; a node to itself does {own_text}, so its processor is the limit, "
            "not the link; ib_write_bw shows it"
        )
    return ok(shown)


@check("link.rdma-rate", needs=("ib_write_bw",), effect="slows")
def rdma_rate(probed: Probed) -> Verdict:
    """each twin reaches its expected bandwidth over RDMA"""
    tries = _tried(probed, "rdma", probed.rdma)
    failed = [t for t in tries if t.rate is None]
    if failed:
        raise NotSeen(f"{failed[0].link}: {failed[0].message or 'ib_write_bw reported no rate'}")
    shown = _rates(tries)
    lowest = min((t.rate for t in tries if t.rate is not None), default=0.0)
    if lowest < DEGRADED_GBITS:
        return fail(shown, "link-at-13-gbps")
    if lowest < GOOD_GBITS:
        return warn(shown, "rdma-below-rate")
    return ok(shown)


@check("serving.completion", needs=("a completion",), effect="blocks")
def completion(probed: Probed) -> Verdict:
    """the endpoint answers a question correctly"""
    answer = _tried(probed, "answer", probed.answer)
    if not judge(None, answer.health).serves:
        return fail(f"/health returns {answer.health or 'nothing'}", "server-not-up")
    came = answer.completion
    if came.status != 200:
        message = f"/health returns 200, a completion {came.status or 'nothing'}: {came.why}"
        return fail(message, "requests-hang")
    text = came.text or came.why
    if answer.expected.lower() not in text.lower():
        return fail(
            f"it says {text[:80]!r}, expected {answer.expected!r}",
            "answers-are-nonsense",
        )
    return ok(f"it says {text[:80]!r}")


ENGINE = re.compile(r"ray|vllm|gcs_server|EngineCor", re.IGNORECASE)
"""Programs of the engine, as the kernel cuts their names off."""


@check("network.open-ports", needs=("what listens, tried from here",), effect="risks")
def open_ports(probed: Probed) -> Verdict:
    """only sshd and the endpoint are reachable from this laptop"""
    scan = _tried(probed, "ports", probed.ports)
    shown = ", ".join(
        f"{p.node} {p.port}{f' ({p.program})' if p.program else ''}" for p in scan.open
    )
    what = "listening ports" if scan.listed else "ports"
    tried = f"{scan.tried:,} {what} tried in {scan.seconds:.0f} s"
    if not scan.complete:
        tried += ", then the time was up"
    engines = [p for p in scan.open if p.engines or ENGINE.search(p.program)]
    if engines:
        return fail(f"open to this laptop: {shown}; {tried}", "firewall-changed")
    if scan.open:
        return warn(f"open to this laptop: {shown}; {tried}", "other-ports-open")
    if not scan.complete:
        raise NotSeen(f"not finished: {tried}; none of them answered")
    return ok(f"nothing else answers; {tried}")


LISTED = 4
"""Rates that are shown one by one: of two nodes all."""


def _rates(measured: Sequence[Transfer]) -> str:
    """Return the rates in words: each, or of many the slow ones and how fast the others are."""
    rates = sorted(((m.rate, m.link) for m in measured if m.rate is not None), key=itemgetter(0))
    if len(rates) <= LISTED:
        return ", ".join(f"{m.link} {m.rate:.1f} Gb/s" for m in measured)
    slow = [f"{link} {rate:.1f} Gb/s" for rate, link in rates if rate < DEGRADED_GBITS]
    (lowest, link), (highest, _) = rates[0], rates[-1]
    if not slow or len(slow) == len(rates):
        return f"{len(rates)} ways, {lowest:.1f} ({link}) to {highest:.1f} Gb/s"
    others = [rate for rate, _ in rates if rate >= DEGRADED_GBITS]
    fast = f"{others[0]:.1f} to {others[-1]:.1f} Gb/s"
    return f"{', '.join(slow)}; the other {len(others)} ways {fast}"


def _tried(probed: Probed, name: str, value: T | None) -> T:
    if value is None:
        raise NotSeen(probed.why_not.get(name, "not tried"))
    return value
