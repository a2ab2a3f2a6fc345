"""Addresses on the fabric: both twins of the cabled ConnectX-7 port, each in its own subnet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel, Field

from spark_cluster.errors import Failed
from spark_cluster.facts.gather import NETPLAN
from spark_cluster.loader.template import render
from spark_cluster.resources import Netplan
from spark_cluster.topology import Node

TEMPLATES = Path(__file__).parent / "templates"
CABLES = {2: 1, 4: 2}
"""ConnectX-7 functions that are up to cables: a port has two; any other count is ambiguous."""


class Settings(BaseModel):
    """Settings of the role `network`."""

    netplan_file: str = Field(
        default=NETPLAN, description="our file; the user's own are never touched"
    )
    any_cable_count: bool = Field(
        default=False,
        description="continue although the number of functions that are up (1 or 3) fits no number "
        "of cables; half the bandwidth is missing then",
    )
    confirm_within_s: float = Field(
        default=20.0,
        ge=0,
        description="after a change the laptop must get a new connection within so many seconds, "
        "or the node restores the old file; 0 disables this",
    )


def role(node: Node, settings: Settings) -> Iterator[Netplan]:
    """Yield one netplan file, for the twins whose addresses are ours to assign."""
    _cabled(node, settings)
    ours = [link for link in node.links if link.ours]
    if ours:
        yield Netplan(
            settings.netplan_file,
            content=render(TEMPLATES, "40-cx7.yaml.j2", links=ours, mtu=node.mtu),
            addresses={link.interface: str(link.address) for link in ours},
            mtu=node.mtu,
            confirm_within_s=settings.confirm_within_s,
        )


def _fix(issue: str, node: Node) -> str:
    """The fix of a known issue for a node."""
    from spark_cluster.known_issues.entries import catalogue  # slow to import, seldom needed

    return catalogue()[issue].fix_on(node.name)


def _cabled(node: Node, settings: Settings) -> None:
    """Raise Failed when no link, or half a link, is up, or an interface of it is not there."""
    seen = ", ".join(f"{h.interface} ({'up' if h.up else 'down'})" for h in node.facts.hcas)
    if not node.links:
        raise Failed(
            f"no ConnectX-7 interface is up (seen: {seen or 'none'})",
            where=node.name,
            hint=f"{_fix('link-down', node)}; or name the interfaces under `fabric` in the "
            "inventory",
        )
    known = [interface.name for interface in node.facts.interfaces]
    absent = [link.interface for link in node.links if link.interface not in known]
    if known and absent:
        raise Failed(
            f"the node has no interface {' or '.join(absent)}, which the inventory names under "
            f"`fabric` (ConnectX-7: {seen or 'none'}; all: {', '.join(known)})",
            where=node.name,
            hint="name one that is up, or write `fabric: detect`",
        )
    up = [hca for hca in node.facts.hcas if hca.up]
    by_hand = not {link.interface for link in node.links} <= {hca.interface for hca in up}
    if up and len(up) not in CABLES and not settings.any_cable_count and not by_hand:
        raise Failed(
            f"{len(up)} of the ConnectX-7's functions are up (seen: {seen}); one cable makes 2, "
            "two make 4",
            where=node.name,
            hint=f"{_fix('link-half-up', node)}; `network: {{any_cable_count: true}}` in the "
            "inventory's settings continues without the missing half",
        )
