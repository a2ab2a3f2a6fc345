"""The TCP ports of the nodes that this laptop can reach, and what listens there."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from spark_cluster.config.ports import EnginePorts, Span
from spark_cluster.doctor import port_scan
from spark_cluster.doctor.probed import OpenPort, PortScan
from spark_cluster.facts import parsers
from spark_cluster.facts.parsers import LISTENERS

if TYPE_CHECKING:
    from spark_cluster.config.inventory import Inventory, InventoryNode
    from spark_cluster.runner.session import Session

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
    """Every port of every node's management address; a text says why not.

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
    done = port_scan.scan(
        port_scan.targets(list(addresses), _in_order(spans)), limit_s=limit_s, at_once=2000
    )
    found: dict[str, list[int]] = {}
    for address, port in done.open:
        if not _expected(inventory, addresses[address], port):
            found.setdefault(addresses[address].name, []).append(port)
    named = {name: listeners(sessions[name]) for name in found}
    ports = [
        OpenPort(name, port, named[name].get(port, ""), _engines(port, spans))
        for name, numbers in found.items()
        for port in numbers
    ]
    return PortScan(tuple(ports), done.tried, done.complete, time.monotonic() - started)


def listeners(session: Session) -> dict[int, str]:
    """Port to the program that listens there, as the node's `ss` reports it."""
    done = session.request("gather", commands={"ss": list(LISTENERS)})["commands"]["ss"]
    return parse_listeners(done["stdout"]) if done is not None else {}


def parse_listeners(text: str) -> dict[int, str]:
    """Parse the output of `ss -Hltnp`; programs on loopback addresses are left out."""
    return {
        one.port: one.program
        for one in parsers.listeners(text)
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


def _engines(port: int, spans: Iterable[Span]) -> bool:
    return any(low <= port <= high for low, high in spans)


def _address(node: InventoryNode) -> str:
    """The address that the name means; the name itself where it cannot be resolved."""
    try:
        return str(socket.getaddrinfo(node.address, None, type=socket.SOCK_STREAM)[0][4][0])
    except OSError:
        return node.address
