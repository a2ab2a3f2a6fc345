"""Addresses on the fabric: both twins of the cabled ConnectX-7 port, each in its own subnet.

They stand in a netplan file of our own. Files of others (the user's, NVIDIA's playbook's,
sparkrun's, NetworkManager's) are never written: their addresses are used, and what they leave open
is added to by our file, which netplan merges with them.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from spark_cluster.config.facts import NetplanDefinition
from spark_cluster.config.schema import Schema
from spark_cluster.config.topology import Link, Node, render
from spark_cluster.errors import Failed
from spark_cluster.node import paths
from spark_cluster.resources import File, Netplan, Resource

TEMPLATES = Path(__file__).parent / "templates"
CABLES = {2: 1, 4: 2}
"""ConnectX-7 functions that are up to cables: a port has two; any other count is ambiguous."""


class Settings(Schema):
    """Settings of the role `network`."""

    netplan_file: str = paths.NETPLAN
    """our own file; those of others are never written"""
    existing_addresses: Literal["adopt", "refuse"] = "adopt"
    """addresses that other netplan files give the link: `adopt` uses them, `refuse` ends before
    anything is changed and names the lines to remove"""
    any_cable_count: bool = False
    """continue although the number of functions that are up (1 or 3) fits no number of cables; half
    the bandwidth is missing then"""
    confirm_within_s: float = Field(default=20.0, ge=0)
    """after a change the laptop must get a new connection within so many seconds, or the node
    restores the old file; 0 disables this"""


def role(node: Node, settings: Settings) -> Iterator[Resource]:
    """Yield our netplan file, for the links whose addresses are ours to give.

    Addresses that other files give must be in force too. Where there is nothing left to give, our
    file is removed, as is one of ours under another name.
    """
    _cabled(node, settings)
    _must_not_conflict(node, settings)
    files = node.facts.netplan
    given = [link for link in node.links if link.ours]
    adopted = [link for link in node.links if _adopted(node, link)]
    entries = [_entry(node, link) for link in given]
    without_mtu = [link for link in adopted if _leaves_mtu_open(node, link)]
    entries += [
        {**_entry(node, k), "address": None, "settings": {"mtu": node.mtu}} for k in without_mtu
    ]
    if given or adopted or settings.netplan_file in files.own:
        yield Netplan(
            settings.netplan_file,
            content=render(TEMPLATES, "netplan.yaml.j2", entries=entries) if entries else None,
            addresses={link.interface: str(link.address) for link in (*given, *adopted)},
            mtu={link.interface: _mtu(node, link) for link in (*given, *without_mtu)},
            kept="; ".join(_kept(node, given, adopted)),
            confirm_within_s=settings.confirm_within_s,
        )
    for path in files.own:
        if path != settings.netplan_file:
            yield File(path, state="absent")


def _adopted(node: Node, link: Link) -> bool:
    """Return whether another netplan file gives the link's address."""
    return not link.ours and link.address in node.facts.netplan.given(link.interface)


def _entry(node: Node, link: Link) -> dict[str, Any]:
    """Return the netplan definition of a link: under the id that others gave it, if any, and
    without what they set themselves; only DHCP is switched off, which no one answers there."""
    others = node.facts.netplan.of_others(link.interface)
    theirs = {key for d in others for key in d.keys} - {"dhcp4"}
    own = {
        "mtu": node.mtu,
        "dhcp4": "false",
        "dhcp6": "false",
        "link-local": "[]",
        "optional": "true",
    }
    return {
        "id": others[0].id if others else link.interface,
        "address": link.address,
        "settings": {key: value for key, value in own.items() if key not in theirs},
    }


def _mtu(node: Node, link: Link) -> int:
    """Return the MTU that a link will have, in bytes."""
    others = node.facts.netplan.of_others(link.interface)
    return next((d.mtu for d in reversed(others) if d.mtu is not None), node.mtu)


def _leaves_mtu_open(node: Node, link: Link) -> bool:
    """Return whether one definition of others is for a link alone, and sets no MTU: both ends of a
    cable need the same, and theirs would have 1500."""
    others = node.facts.netplan.of_others(link.interface)
    alone = len({other.id for other in others}) == 1 and not any(o.shared for o in others)
    return alone and all(other.mtu is None for other in others)


def _kept(node: Node, given: list[Link], adopted: list[Link]) -> Iterator[str]:
    """Yield what stays of other netplan files, with the places."""
    for link in adopted:
        yield f"{link.interface} keeps {link.address} of {_place(node, link)}"
    for link in given:
        for other in node.facts.netplan.of_others(link.interface):
            yield f"{other.where} stays, and {link.interface} is given an address"
            if other.dhcp4:
                yield "its dhcp4 is switched off: no one answers on a cable between two nodes"
            if other.mtu not in (None, node.mtu):
                yield f"its MTU {other.mtu} stays, where the inventory says {node.mtu}"


def _place(node: Node, link: Link) -> str:
    """Return the file and line of the address of a link; only its node where there is none."""
    for other in node.facts.netplan.of_others(link.interface):
        for given in other.addresses:
            if given.address == link.address:
                return f"{other.file}:{given.line}"
    return f"{node.name}, outside netplan"


def _fix(issue: str, node: Node) -> str:
    """The fix of a known issue for a node."""
    from spark_cluster.issues.entries import catalogue  # slow to import, seldom needed

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


# -- conflicts ---------------------------------------------------------------------------------


def _must_not_conflict(node: Node, settings: Settings) -> None:
    """Raise Failed for what our file cannot be merged with, before anything is changed."""
    files = node.facts.netplan
    problems = [f"{text} (netplan does not read it either)" for text in files.unreadable]
    if settings.netplan_file in files.paths and settings.netplan_file not in files.own:
        problems.append(
            f"{settings.netplan_file}: not written by spark-cluster; rename it, or name another "
            "file in `settings: {network: {netplan_file: ...}}`"
        )
    for link in node.links:
        if link.ours:
            problems += _with_others(node, link)
            problems += _with_other_nodes(node, link)
        elif settings.existing_addresses == "refuse" and _adopted(node, link):
            problems.append(
                f"{_place(node, link)}: {link.interface} has {link.address}; remove the line, and "
                "it gets one of the pool"
            )
    problems += _in_one_subnet(node)
    if problems:
        raise Failed(
            "the link's addresses are in conflict with what is configured there:\n"
            + "\n".join(f"  {text}" for text in problems),
            where=node.name,
            hint="nothing was changed; `netplan get` on the node shows what its files say together",
        )


def _present(node: Node, link: Link) -> bool:
    """Return whether a link has its address already."""
    interface = node.facts.interface(link.interface)
    return interface is not None and link.address in interface.addresses


def _with_others(node: Node, link: Link) -> Iterator[str]:
    """Yield what other netplan files say of an interface that is to be given an address."""
    others = node.facts.netplan.of_others(link.interface)
    for other in others:
        if other.member_of:
            yield (
                f"{other.where}: {link.interface} is part of {other.member_of}; take it out, or "
                "name what carries the link under `fabric` in the inventory"
            )
        elif other.shared:
            yield (
                f"{other.where}: the definition {other.id} is for other interfaces, too; narrow "
                f"its `match`, so that {link.interface} can have an address of its own"
            )
        elif other.addresses and not _present(node, link):
            yield (
                f"{other.file}:{other.addresses[0].line}: {link.interface} has "
                f"{other.addresses[0].address}, and the inventory says {link.address}; remove one "
                "of them, or write `configure: false` in the inventory"
            )
    if len({other.id for other in others}) > 1:
        yield (
            f"{' and '.join(_places(others))} are different definitions for {link.interface}; "
            "netplan uses one of them only: remove the other"
        )


def _places(definitions: tuple[NetplanDefinition, ...]) -> list[str]:
    return [f"{one.where} ({one.id})" for one in definitions]


def _with_other_nodes(node: Node, link: Link) -> Iterator[str]:
    """Yield addresses of other nodes that a link of this one is to reach, and could not."""
    place = node.links.index(link)
    for other in node.cluster:
        peer = other.links[place] if place < len(other.links) else None
        if peer is None or peer.ours or peer.address.network == link.address.network:
            continue
        yield (
            f"{link.interface} gets {link.address}, and {other.name} has {peer.address} on "
            f"{peer.interface} ({_place(other, peer)}), which is another subnet; write `fabric: "
            f"{{pool: [{peer.address.network}, ...]}}` in the inventory, or remove the line there"
        )


def _in_one_subnet(node: Node) -> Iterator[str]:
    """Yield pairs of interfaces that would have addresses of the same subnet."""
    new = [link for link in node.links if link.ours and not _present(node, link)]
    names = {link.interface for link in node.links}
    others = [
        (one.name, address, "")
        for one in node.facts.interfaces
        for address in one.addresses
        if one.name not in names
    ]
    kept = [(k.interface, k.address, _place(node, k)) for k in node.links if not k.ours]
    pool = "write another `fabric: {pool: ...}` in the inventory"
    for link in new:
        for name, address, place in (*kept, *others):
            if link.address.network.overlaps(address.network):
                at = f" ({place})" if place else ""
                yield (
                    f"{link.interface} gets {link.address}, and {name} has {address}{at} of the "
                    f"same subnet; {pool}"
                )
    for one, two in combinations(new, 2):
        if one.address.network.overlaps(two.address.network):
            yield f"{one.interface} and {two.interface} both get addresses of one subnet; {pool}"
