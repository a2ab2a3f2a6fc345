"""The nodes as roles see them: who they are, what is true of them, how they are linked."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from ipaddress import IPv4Interface
from typing import TYPE_CHECKING, Any

from spark_cluster.config.facts import Facts, Hca
from spark_cluster.config.inventory import Inventory, InventoryNode, fabric_addresses
from spark_cluster.config.inventory_checks import FIRST_HOST
from spark_cluster.errors import Refused

if TYPE_CHECKING:
    from fabric import Connection


@dataclass(frozen=True)
class Link:
    """A twin of the cabled ConnectX-7 port.

    Attributes:
        interface: its network interface.
        address: its address on the fabric, present or to be given.
        hca: its RDMA device; None when the node has none of that interface.
        ours: the address is for the `network` role to give; otherwise the user's own
            configuration has given it.
    """

    interface: str
    address: IPv4Interface
    hca: str | None = None
    ours: bool = True


@dataclass(frozen=True)
class Node:
    """A node, as roles see it.

    Attributes:
        name, address: as in the inventory.
        index: place in the inventory, from 0.
        user: the login user on the node.
        links: the fabric, first twin first; empty without one.
        cluster: all nodes of the inventory, this one included (their own `cluster` is empty).
        connect: returns what `connection` does; None outside a run.
    """

    name: str
    address: str = ""
    index: int = 0
    is_head: bool = True
    user: str = "root"
    facts: Facts = field(default_factory=Facts)
    links: tuple[Link, ...] = ()
    mtu: int = 9000
    cluster: tuple[Node, ...] = field(default=(), compare=False, repr=False)
    connect: Callable[[], Connection] | None = field(default=None, compare=False, repr=False)

    @property
    def head(self) -> Node:
        """The cluster's head."""
        return next((n for n in self.cluster if n.is_head), self)

    @property
    def connection(self) -> Connection:
        """fabric's `Connection` to the node, over the run's own SSH connection, in a playbook.

        Raises:
            Refused: the node is not reached over SSH, or this is no run.
            Unreachable: its connection was lost.
        """
        if self.connect is None:
            raise Refused("only a node of a run has a connection", where=self.name)
        return self.connect()

    @property
    def fabric_ip(self) -> str | None:
        """Address of the first twin."""
        return str(self.links[0].address.ip) if self.links else None


def topology_of(
    inventory: Inventory,
    names: Iterable[str],
    users: Mapping[str, str],
    ask: Callable[[str], Facts],
    connect: Callable[[str], Connection] | None = None,
) -> dict[str, Node]:
    """These nodes, each knowing all of them.

    Their facts are asked for when those of one, or what follows from them, are first read, which
    raises what `ask(name)` raises.

    Args:
        users: name to login user.
        connect: returns a node's `connection`, by its name.
    """
    wanted = {name: node for name, node in inventory.nodes.items() if name in set(names)}
    known = _Known(inventory, tuple(wanted), ask)
    own = {name: _identity(inventory, node, users, connect) for name, node in wanted.items()}
    members = tuple(_AskedNode.of(known, cluster=(), **of) for of in own.values())
    return {name: _AskedNode.of(known, cluster=members, **of) for name, of in own.items()}


@dataclass(frozen=True)
class _Known:
    """What is asked of the nodes of a cluster, once."""

    inventory: Inventory
    names: tuple[str, ...]
    ask: Callable[[str], Facts]

    @cached_property
    def links(self) -> dict[str, tuple[Link, ...]]:
        return links_of(self.inventory, {name: self.ask(name) for name in self.names})


class _AskedNode(Node):
    """A node that asks for its facts when they, or what follows from them, are first read.

    A copy of it (`dataclasses.replace`) has them.
    """

    known: _Known

    @classmethod
    def of(cls, known: _Known, **own: Any) -> Node:
        """Make one of all fields but `facts` and `links`, which __init__ would want."""
        made = cls.__new__(cls)
        vars(made).update(own, known=known)
        return made

    @cached_property
    def facts(self) -> Facts:
        return self.known.ask(self.name)

    @cached_property
    def links(self) -> tuple[Link, ...]:
        return self.known.links[self.name]


def _identity(
    inventory: Inventory,
    node: InventoryNode,
    users: Mapping[str, str],
    connect: Callable[[str], Connection] | None,
) -> dict[str, Any]:
    """Return the fields of a node that are known without its facts."""
    return {
        "name": node.name,
        "address": node.address,
        "index": node.index,
        "is_head": node.is_head,
        "user": users.get(node.name, "root"),
        "mtu": inventory.mtu,
        "connect": partial(connect, node.name) if connect is not None else None,
    }


def links_of(inventory: Inventory, facts: Mapping[str, Facts]) -> dict[str, tuple[Link, ...]]:
    """Return the twins of each node, with addresses in subnets that the nodes share.

    Where the user has configured one node only, the others get addresses in its subnets.
    """
    alone = {
        name: links(inventory, node, facts[name])
        for name, node in inventory.nodes.items()
        if name in facts
    }
    return {
        name: tuple(
            _joined(inventory, facts, name, link, [k[at] for k in others if at < len(k)])
            for at, link in enumerate(found)
        )
        for name, found in alone.items()
        for others in [[k for other, k in alone.items() if other != name]]
    }


def _joined(
    inventory: Inventory, facts: Mapping[str, Facts], name: str, link: Link, peers: list[Link]
) -> Link:
    """Return a link with the address that fits the same twins of the other nodes."""
    node, interface = inventory.nodes[name], facts[name].interface(link.interface)
    if not link.ours or node.fabric != "detect":
        return link
    present = interface.addresses if interface is not None else ()
    given = [address for address in present if address in facts[name].given_addresses]
    networks = {peer.address.network for peer in peers if not peer.ours}
    if not networks and given and len(facts) < len(inventory.nodes):
        # It may be for an address of a node that is not in this run.
        return replace(link, address=given[0])
    if len(networks) != 1 or link.address.network in networks:
        return link
    (network,) = networks
    numbers = (FIRST_HOST + node.index, *range(1, min(network.num_addresses - 1, FIRST_HOST)))
    taken = {peer.address.ip for peer in peers}
    free = [
        IPv4Interface((network[n], network.prefixlen))
        for n in numbers
        if n < network.num_addresses - 1 and network[n] not in taken
    ]
    kept = [address for address in given if address.network == network]
    return replace(link, address=next(iter([*kept, *free]), link.address))


def links(inventory: Inventory, node: InventoryNode, facts: Facts) -> tuple[Link, ...]:
    """The node's twins with their addresses.

    With `fabric: detect` a twin keeps an address that it already has, or that a netplan file of
    the user's gives it, so that what a user configured is never fought; without one, or with one
    that an earlier run gave (the pool may be another one now), it gets its place in the inventory's
    pool. Named interfaces get what the inventory says, unless it says that they have it already
    (`configure: false`), or the user's netplan gives it.
    """
    if node.fabric != "detect":
        hcas = {h.interface: h.name for h in facts.hcas}
        return tuple(
            Link(
                one.name,
                one.address,
                hcas.get(one.name),
                ours=one.configure and one.address not in facts.netplan.given(one.name),
            )
            for one in node.fabric
        )
    found = []
    for hca, address in zip(cabled_port(facts), fabric_addresses(inventory, node), strict=False):
        interface = facts.interface(hca.interface)
        present = interface.addresses if interface is not None else ()
        given = facts.netplan.given(hca.interface)
        theirs = [*given, *(one for one in present if one not in facts.given_addresses)]
        ours = address not in given and (not theirs or address in present)
        found.append(Link(hca.interface, address if ours else theirs[0], hca.name, ours))
    return tuple(found)


def port_of(interface: str) -> str:
    """Return the port of a twin, by the end of its name.

    A port's two twins differ in their PCI domain only.

    >>> port_of("enp1s0f1np1"), port_of("enP2p1s0f1np1")
    ('f1np1', 'f1np1')
    """
    place = re.search(r"f\d+(np\d+)?$", interface)
    return place[0] if place else interface


def cabled_port(facts: Facts) -> tuple[Hca, ...]:
    """The up twins of the port that has a cable; of two cabled ports, the first."""
    ports: dict[str, list[Hca]] = {}
    for hca in facts.hcas:
        if hca.up:
            ports.setdefault(port_of(hca.interface), []).append(hca)
    best = sorted(ports.items(), key=lambda item: (-len(item[1]), item[0]))
    return tuple(best[0][1]) if best else ()
