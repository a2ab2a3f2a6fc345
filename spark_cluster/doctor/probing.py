"""The probes themselves: traffic between nodes and a completion, only when they are asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from spark_cluster import fabric
from spark_cluster.cluster import sparks
from spark_cluster.doctor import ports, transfer
from spark_cluster.doctor.engines import Engine
from spark_cluster.doctor.finding import NotSeen
from spark_cluster.doctor.observations import Observations
from spark_cluster.doctor.probed import Answer, Ping, Probed, Rdma, Transfer
from spark_cluster.engine.session import Session
from spark_cluster.errors import SparkClusterError
from spark_cluster.fabric import Hop
from spark_cluster.ports import EnginePorts, Span

if TYPE_CHECKING:
    from spark_cluster.inventory import Inventory
    from spark_cluster.userfiles.recipe_file import Probe

SMALL = 84
"""Bytes of an ordinary ping with its headers."""

Sessions = Mapping[str, Session]


@dataclass(frozen=True)
class Question:
    """What the endpoint is asked, and with which key.

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
    """Everything that can be probed; what cannot has its reason in `why_not`."""
    why_not: dict[str, str] = {}
    users = {seen.node: seen.user for seen in nodes}
    known = sparks(inventory, {seen.node: seen.facts for seen in nodes}, users)
    hops = fabric.hops(list(known.values()))
    if not hops:
        reason = "one node alone" if len(nodes) < 2 else "no link is up between the nodes"
        why_not = dict.fromkeys(("pings", "transfers", "rdma"), reason)
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
        full_size=inventory.mtu - fabric.HEADERS,
        pings=pings(hops, sessions, inventory.mtu) if hops else None,
        transfers=transfers(hops, sessions) if hops else None,
        rdma=rdma(hops, sessions) if hops and not lacking else None,
        answer=answer,
        ports=None if isinstance(tried, str) else tried,
        why_not=why_not,
    )


def name(hop: Hop) -> str:
    """A hop in a few words."""
    return f"{hop.source.name} {hop.ours.interface} to {hop.target.name}"


def pings(hops: Sequence[Hop], sessions: Sessions, mtu: int) -> tuple[Ping, ...]:
    """A small and a full-size packet over every hop, all at once; what is lost is sent again."""
    sizes = {"small": SMALL, "full": mtu}
    first = _send(hops, sessions, sizes)
    lost = [hop for hop in hops if not all(_came(first[name(hop)], kind) for kind in sizes)]
    again = _send(lost, sessions, sizes) if lost else {}
    found = []
    for hop in hops:
        tries = [told[name(hop)] for told in (first, again) if name(hop) in told]
        small, full = ([_came(told, kind) for told in tries] for kind in sizes)
        if None in (*small, *full):
            found.append(Ping(name(hop), None, None, "there is no ping on the node"))
        else:
            found.append(Ping(name(hop), any(small), any(full)))
    return tuple(found)


def _send(
    hops: Sequence[Hop], sessions: Sessions, sizes: Mapping[str, int]
) -> dict[str, dict[str, Any]]:
    """One packet of each size over every hop: hop to size's name to what ping did."""
    asked = {}
    for source in {hop.source.name for hop in hops}:
        mine = [hop for hop in hops if hop.source.name == source]
        commands = {
            f"{kind} {name(hop)}": fabric.ping_argv(hop, size)
            for hop in mine
            for kind, size in sizes.items()
        }
        asked[source] = sessions[source].submit("gather", commands=commands, timeout=15.0)
    told = {source: pending.wait()["commands"] for source, pending in asked.items()}
    return {
        name(hop): {kind: told[hop.source.name][f"{kind} {name(hop)}"] for kind in sizes}
        for hop in hops
    }


def _came(told: Mapping[str, Any], kind: str) -> bool | None:
    """Whether a packet came back; None without the program."""
    done = told[kind]
    return None if done is None else done["status"] == 0


def transfers(hops: Sequence[Hop], sessions: Sessions) -> tuple[Transfer, ...]:
    """TCP over every hop, one after the other; first each node to itself, to compare with."""
    names = sorted({hop.source.name for hop in hops})
    with ThreadPoolExecutor() as pool:
        alone = pool.map(lambda n: transfer.measure(sessions[n], sessions[n], "127.0.0.1"), names)
        own = {node: measured.rate for node, measured in zip(names, alone, strict=True)}
    found = []
    for number, hop in enumerate(hops, start=1):
        sender, receiver = sessions[hop.source.name], sessions[hop.target.name]
        address, port = str(hop.theirs.address.ip), transfer.PORT + number
        done = transfer.measure(sender, receiver, address, port=port)
        found.append(Transfer(name(hop), done.rate, own[hop.source.name], done.said))
    return tuple(found)


def rdma(hops: Sequence[Hop], sessions: Sessions) -> tuple[Rdma, ...]:
    """`ib_write_bw` over every hop, one after the other."""
    found = []
    for hop in hops:
        try:
            rate = fabric.measure(sessions[hop.target.name], sessions[hop.source.name], hop)
            found.append(Rdma(name(hop), rate))
        except SparkClusterError as error:
            found.append(Rdma(name(hop), None, error.message))
    return tuple(found)


def _answer(nodes: Sequence[Observations], sessions: Sessions, question: Question) -> Answer | None:
    """The endpoint's answer, asked by the node where the server runs."""
    from spark_cluster.serving.endpoint import running
    from spark_cluster.serving.proxy import DESCRIPTION
    from spark_cluster.serving.readiness import ask_once

    for seen in nodes:
        for engine in _engines(seen):
            if not engine.is_server or not engine.running:
                continue
            session = sessions[seen.node]
            told = session.request("gather", files={"endpoint": DESCRIPTION})["files"]
            endpoint = running(engine.labels, told["endpoint"], question.key)
            if endpoint is None:
                continue
            health = endpoint.request(session, "/health", timeout=5)
            said = ask_once(session, endpoint, question.probe, timeout=20)
            expected = question.probe.expect
            return Answer(health.status, said.status, said.text or said.why, expected)
    return None


def _engines(seen: Observations) -> tuple[Engine, ...]:
    try:
        return seen.engines
    except NotSeen:
        return ()


def _has(seen: Observations, tool: str) -> bool:
    try:
        return seen.has(tool)
    except NotSeen:
        return False
