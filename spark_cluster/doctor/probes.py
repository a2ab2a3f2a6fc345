"""Checks of what probes found: real traffic over the link, a real completion."""

from __future__ import annotations

import re
from typing import TypeVar

from spark_cluster.doctor.check import check
from spark_cluster.doctor.finding import NotSeen, Verdict, fail, ok, warn
from spark_cluster.doctor.probed import Probed

T = TypeVar("T")

FAULT_GBPS = 25.0
"""A healthy twin carries 92-111 Gb/s; the known fault leaves 8-25."""

HEALTHY_RDMA_GBPS = 85.0
OF_OWN = 0.33
"""A link that carries less than this share of what the node does to itself is the limit."""

DRAIN = "shut both nodes down, unplug their power supplies from AC for 60 s (a reboot is no cure)"


@check(
    "link.full-size-ping",
    title="full-size frames pass over the link, both ways",
    needs=("pings",),
    severity="blocks",
    cause="the MTU differs between the nodes, or a switch between them takes small frames only",
    fix="spark-cluster provision --tags network",
    rows=(6,),
)
def full_size_ping(probed: Probed) -> Verdict:
    pings = _tried(probed, "pings", probed.pings)
    untried = [ping for ping in pings if ping.small is None]
    if untried:
        raise NotSeen(f"{untried[0].link}: {untried[0].said or 'ping could not be run'}")
    dead = [ping.link for ping in pings if not ping.small]
    if dead:
        return fail(
            f"no answer at all: {', '.join(dead)}",
            cause="no cable, no address on one end, or a firewall",
        )
    cut = [ping.link for ping in pings if not ping.full]
    if cut:
        return fail(f"{probed.full_size} bytes do not pass, small ones do: {', '.join(cut)}")
    return ok(f"{probed.full_size} bytes pass on {len(pings)} ways")


@check(
    "link.transfer-rate",
    title="each twin carries what it should",
    needs=("transfers",),
    severity="slows",
    cause="firmware or power state of the ConnectX-7: it looks healthy and carries about 13 Gb/s",
    fix=DRAIN,
    rows=(7,),
)
def transfer_rate(probed: Probed) -> Verdict:
    transfers = _tried(probed, "transfers", probed.transfers)
    failed = [t for t in transfers if t.rate is None]
    if failed:
        raise NotSeen(f"{failed[0].link}: {failed[0].said or 'nothing came'}")
    shown = ", ".join(f"{t.link} {t.rate:.1f} Gb/s" for t in transfers)
    slow = [t for t in transfers if t.rate is not None and t.rate < FAULT_GBPS]
    for transfer in slow:
        own = transfer.own
        if own is not None and transfer.rate is not None and transfer.rate < OF_OWN * own:
            return fail(f"{shown} (a node to itself: {own:.0f})")
    if slow:
        own_text = "nothing" if slow[0].own is None else f"{slow[0].own:.0f} Gb/s"
        raise NotSeen(
            f"{shown}; a node to itself does {own_text}, so its processor is the limit, "
            "not the link; ib_write_bw tells"
        )
    return ok(shown)


@check(
    "link.rdma-rate",
    title="each twin carries what it should over RDMA",
    needs=("ib_write_bw",),
    severity="slows",
    cause="firmware or power state of the ConnectX-7: it looks healthy and carries about 13 Gb/s",
    fix=DRAIN,
    rows=(7,),
)
def rdma_rate(probed: Probed) -> Verdict:
    tries = _tried(probed, "rdma", probed.rdma)
    failed = [t for t in tries if t.rate is None]
    if failed:
        raise NotSeen(f"{failed[0].link}: {failed[0].said or 'ib_write_bw told no rate'}")
    shown = ", ".join(f"{t.link} {t.rate:.1f} Gb/s" for t in tries)
    lowest = min((t.rate for t in tries if t.rate is not None), default=0.0)
    if lowest < FAULT_GBPS:
        return fail(shown)
    if lowest < HEALTHY_RDMA_GBPS:
        return warn(shown, cause="a small MTU, a 100G cable, or traffic of others meanwhile")
    return ok(shown)


@check(
    "serving.completion",
    title="the endpoint answers a question, and rightly",
    needs=("a completion",),
    severity="blocks",
    cause="a worker died: /health stays fine for minutes while requests time out",
    fix="spark-cluster logs shows the earliest error; spark-cluster up starts it again",
    rows=(36,),
)
def completion(probed: Probed) -> Verdict:
    answer = _tried(probed, "answer", probed.answer)
    if answer.health != 200:
        return fail(
            f"/health says {answer.health or 'nothing'}",
            cause="the server is loading, or ended",
            fix="spark-cluster status; spark-cluster logs",
        )
    if answer.status != 200:
        return fail(f"/health says 200, a completion {answer.status or 'nothing'}: {answer.text}")
    if answer.expected.lower() not in answer.text.lower():
        return fail(
            f"it says {answer.text[:80]!r}, expected {answer.expected!r}",
            cause="wrong kernels, or a damaged copy of the model",
        )
    return ok(f"it says {answer.text[:80]!r}")


ENGINE = re.compile(r"ray|vllm|gcs_server|EngineCor", re.IGNORECASE)
"""Programs of the engine, as the kernel cuts their names off."""


@check(
    "network.open-ports",
    title="nothing but sshd and the endpoint answers this laptop",
    needs=("every TCP port, tried from here",),
    severity="risks",
    cause="who reaches Ray or a rank of vLLM runs what they like there, as root",
    fix="spark-cluster up puts the firewall back; `trusted_network: true` goes without one",
)
def open_ports(probed: Probed) -> Verdict:
    scan = _tried(probed, "ports", probed.ports)
    shown = ", ".join(
        f"{p.node} {p.port}{f' ({p.program})' if p.program else ''}" for p in scan.open
    )
    tried = f"{scan.tried} ports tried in {scan.seconds:.0f} s"
    if not scan.complete:
        tried += ", then the time was up"
    engines = [p for p in scan.open if p.engines or ENGINE.search(p.program)]
    if engines:
        return fail(f"open to this laptop: {shown}; {tried}")
    if scan.open:
        return warn(
            f"open to this laptop: {shown}; {tried}",
            cause="services of the node's own, none of the engine's",
            fix="stop those that nobody needs, or close their ports in your firewall",
        )
    return ok(f"nothing else answers; {tried}")


def _tried(probed: Probed, name: str, value: T | None) -> T:
    if value is None:
        raise NotSeen(probed.why_not.get(name, "not tried"))
    return value
