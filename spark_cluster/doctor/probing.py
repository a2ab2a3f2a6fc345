"""The probes themselves: traffic between nodes and a completion, only when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from spark_cluster.config.ports import EnginePorts, Span
from spark_cluster.doctor import ports, transfer
from spark_cluster.doctor.observations import Observations
from spark_cluster.doctor.probed import Answer, Ping, Probed, Rdma, Transfer
from spark_cluster.doctor.verdict import NotSeen
from spark_cluster.engine import link_check
from spark_cluster.engine.link_check import Cabling, Hop
from spark_cluster.errors import SparkClusterError
from spark_cluster.node.containers import ContainerState
from spark_cluster.runner.session import Session
from spark_cluster.topology import Node, topology_of

if TYPE_CHECKING:
    from spark_cluster.config.inventory import Inventory
    from spark_cluster.config.recipe_schema import Probe

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
    known = topology_of(inventory, {seen.node: seen.facts for seen in nodes}, users)
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
        why_not["answer"] = "no server of ours runs on these nodes"
    tried = ports.look(inventory, sessions, question.spans) if question.scan else "not asked for"
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
    with ThreadPoolExecutor() as pool:
        alone = pool.map(lambda n: transfer.measure(sessions[n], sessions[n], "127.0.0.1"), names)
        own = {node: measured.rate for node, measured in zip(names, alone, strict=True)}
    ports = {str(hop): transfer.PORT + number for number, hop in enumerate(hops, start=1)}

    def measured(hop: Hop) -> transfer.Measured:
        sender, receiver = sessions[hop.source.name], sessions[hop.target.name]
        return transfer.measure(sender, receiver, str(hop.theirs.address.ip), port=ports[str(hop)])

    found = []
    for hop, outcome in zip(hops, link_check.in_rounds(hops, measured), strict=True):
        done = outcome
        if isinstance(done, SparkClusterError):
            done = transfer.Measured(None, done.message)
        found.append(Transfer(name(hop), done.rate, own[hop.source.name], done.output))
    return tuple(found)


def rdma(hops: Sequence[Hop], sessions: Sessions) -> tuple[Rdma, ...]:
    """`ib_write_bw` over every hop, in rounds."""
    rates = link_check.bandwidths(hops, lambda node: sessions[node.name])
    return tuple(
        Rdma(name(hop), None, rate.message)
        if isinstance(rate, SparkClusterError)
        else Rdma(name(hop), rate)
        for hop, rate in zip(hops, rates, strict=True)
    )


def _answer(nodes: Sequence[Observations], sessions: Sessions, question: Question) -> Answer | None:
    """The endpoint's answer, asked by the node where the server runs."""
    from spark_cluster.engine.endpoint import ANSWERS, probe_once, running
    from spark_cluster.engine.engine import ask_health, engine_of
    from spark_cluster.engine.proxy import DESCRIPTION

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
            return Answer(health.status, reply, expected)
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
