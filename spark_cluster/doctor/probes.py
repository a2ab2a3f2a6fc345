"""Checks of what probes found: real traffic over the link, a real completion."""

from __future__ import annotations

import re
from collections.abc import Sequence
from operator import itemgetter
from typing import TypeVar

from spark_cluster.doctor.check import check
from spark_cluster.doctor.probed import Probed, Rdma, Transfer
from spark_cluster.doctor.verdict import NotSeen, Verdict, fail, ok, warn
from spark_cluster.engine.link_check import DEGRADED_GBITS, GOOD_GBITS, without_switch
from spark_cluster.node.health import judge

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


@check("network.open-ports", needs=("every TCP port, tried from here",), effect="risks")
def open_ports(probed: Probed) -> Verdict:
    """only sshd and the endpoint are reachable from this laptop"""
    scan = _tried(probed, "ports", probed.ports)
    shown = ", ".join(
        f"{p.node} {p.port}{f' ({p.program})' if p.program else ''}" for p in scan.open
    )
    tried = f"{scan.tried} ports tried in {scan.seconds:.0f} s"
    if not scan.complete:
        tried += ", then the time was up"
    engines = [p for p in scan.open if p.engines or ENGINE.search(p.program)]
    if engines:
        return fail(f"open to this laptop: {shown}; {tried}", "firewall-changed")
    if scan.open:
        return warn(f"open to this laptop: {shown}; {tried}", "other-ports-open")
    return ok(f"nothing else answers; {tried}")


LISTED = 4
"""Rates that are shown one by one: of two nodes all."""


def _rates(measured: Sequence[Transfer] | Sequence[Rdma]) -> str:
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
