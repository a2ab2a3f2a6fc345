"""The checks between the fields of an inventory, beyond each field on its own."""

from __future__ import annotations

import ipaddress
from collections.abc import Collection, Iterator
from ipaddress import IPv4Address, IPv4Interface, IPv4Network
from typing import Any

from spark_cluster.config.fields import is_ip
from spark_cluster.config.inventory_schema import InventoryFile, SshEntry
from spark_cluster.config.ports import LAST_PORT
from spark_cluster.config.suggest import did_you_mean
from spark_cluster.config.yamlfile import Key, Problem

FIRST_HOST = 11
"""Host part of the first node's link address, where `fabric: detect` chooses it."""

_IMPLIED = ("all", "head", "worker")


def check(entry: InventoryFile) -> list[Problem]:
    """Every problem between the fields; empty when the inventory is sound."""
    return [
        *_names(entry),
        *_roles(entry),
        *_addresses(entry),
        *_connections(entry),
        *_serve(entry),
        *_models(entry),
        *_groups(entry),
        *_pool(entry),
        *_interfaces(entry),
        *_subnets(entry),
    ]


def unknown_role_settings(entry: InventoryFile, roles: Collection[str]) -> list[Problem]:
    """Settings for roles that do not exist: nothing would read them."""
    layers: dict[Key, dict[str, Any]] = {("settings",): entry.settings}
    for group, given in entry.group_settings.items():
        layers["group_settings", group] = given
    for name, node in entry.nodes.items():
        layers["nodes", name, "settings"] = node.settings
    return [
        Problem((*layer, role), f"no role '{role}'; {did_you_mean(role, roles, 'roles')}")
        for layer, given in layers.items()
        for role in given
        if role not in roles
    ]


def _names(entry: InventoryFile) -> Iterator[Problem]:
    for name in entry.nodes:
        if name in _IMPLIED:
            yield Problem(
                ("nodes", name), f"'{name}' is a built-in group; give the node another name"
            )


def _roles(entry: InventoryFile) -> Iterator[Problem]:
    heads = [name for name, node in entry.nodes.items() if "head" in node.roles]
    lone = len(entry.nodes) == 1 and not next(iter(entry.nodes.values())).roles
    if not heads and not lone:
        first = next(iter(entry.nodes))
        yield Problem(
            ("nodes",), f"no node is the head; give one of them (say {first}) roles: [head]"
        )
    for name in heads[1:]:
        yield Problem(("nodes", name, "roles"), f"a second head; '{heads[0]}' is the head already")


def _addresses(entry: InventoryFile) -> Iterator[Problem]:
    seen: dict[tuple[str, int | None], str] = {}
    for name, node in entry.nodes.items():
        # Behind one address, ports may lead to different nodes (forwarded, or a jump host's).
        reached = (_one_spelling(node.address), node.port or entry.ssh.port)
        if reached in seen:
            yield Problem(
                ("nodes", name, "address"),
                f"found '{node.address}', which is the address of '{seen[reached]}' already",
            )
        seen.setdefault(reached, name)


def _connections(entry: InventoryFile) -> Iterator[Problem]:
    """One node at most is this machine, and SSH settings of its own would have no effect."""
    local = [name for name, node in entry.nodes.items() if node.connection == "local"]
    here = [name for name in local if entry.nodes[name].namespaces_of is None]
    for name in here[1:]:
        message = (
            f"two nodes cannot be this machine; '{here[0]}' has connection: local already "
            "(namespaces_of makes a node of a container)"
        )
        yield Problem(("nodes", name, "connection"), message)
    yield from _namespaces(entry)
    for name in local:
        for setting in sorted(entry.nodes[name].model_fields_set & SshEntry.model_fields.keys()):
            yield Problem(
                ("nodes", name, setting), f"{setting} is for SSH, and connection is local"
            )


def _namespaces(entry: InventoryFile) -> Iterator[Problem]:
    """Namespaces are entered on this machine only, and each node has its own."""
    seen: dict[object, str] = {}
    for name, node in entry.nodes.items():
        if node.namespaces_of is None:
            continue
        at: Key = ("nodes", name, "namespaces_of")
        if node.connection != "local":
            yield Problem(at, "namespaces_of is for connection: local, and connection is ssh")
        if node.namespaces_of in seen:
            yield Problem(at, f"'{seen[node.namespaces_of]}' has the same namespaces already")
        seen.setdefault(node.namespaces_of, name)


def _serve(entry: InventoryFile) -> Iterator[Problem]:
    """The endpoint is open to a network only when the inventory says so."""
    serve = entry.serve
    if serve.api_key is not None and serve.open:
        yield Problem(
            ("serve", "open"),
            "open means without a key, and there is an api_key; take one of them out",
        )
    elif not serve.on_loopback and serve.api_key is None and not serve.open:
        network = "the management" if serve.bind == "management" else f"{serve.bind}'s"
        yield Problem(
            ("serve", "bind"),
            f"anyone on {network} network could use the endpoint; give it an "
            "api_key: {env: SPARK_API_KEY}, or set open: true if that is meant",
        )
    if serve.proxied and serve.port in serve.engine_ports:
        yield Problem(
            ("serve", "engine_port" if "engine_port" in serve.model_fields_set else "port"),
            f"{serve.port} is also vLLM's own port behind the endpoint; take another",
        )


def _models(entry: InventoryFile) -> Iterator[Problem]:
    """Each of several models is there once, and on a node that there is."""
    serve = entry.serve
    seen: set[str] = set()
    for index, model in enumerate(serve.recipes):
        at: Key = ("serve", "recipes", index)
        if model.recipe in seen:
            yield Problem(at, f"'{model.recipe}' is given twice")
        seen.add(model.recipe)
        if model.node is not None and model.node not in entry.nodes:
            advice = did_you_mean(model.node, entry.nodes, "nodes")
            yield Problem((*at, "node"), f"no node '{model.node}'; {advice}")
    if serve.recipes and serve.engine_ports[-1] > LAST_PORT:
        message = f"{len(serve.recipes)} models need as many ports from {serve.engine_port} on"
        yield Problem(("serve", "engine_port"), message)


def _one_spelling(address: str) -> str:
    """The same text for every way to write an address: `fd00::1` is `FD00:0:0:0:0:0:0:1`."""
    if not is_ip(address):
        return address.lower().rstrip(".")
    parsed = ipaddress.ip_address(address)
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return str(mapped or parsed)


def _groups(entry: InventoryFile) -> Iterator[Problem]:
    for group, members in entry.groups.items():
        if group in _IMPLIED:
            yield Problem(("groups", group), f"'{group}' is a built-in group; leave it out")
        elif group in entry.nodes:
            yield Problem(("groups", group), "has the name of a node")
        for index, name in enumerate(members):
            if name not in entry.nodes:
                advice = did_you_mean(name, entry.nodes, "nodes")
                yield Problem(("groups", group, index), f"no node '{name}'; {advice}")
    for group in entry.group_settings:
        if group not in entry.groups and group not in _IMPLIED:
            advice = did_you_mean(group, [*entry.groups, *_IMPLIED], "groups")
            yield Problem(("group_settings", group), f"no group '{group}'; {advice}")


def _management(entry: InventoryFile) -> dict[str, IPv4Address]:
    addresses = {name: node.address for name, node in entry.nodes.items() if is_ip(node.address)}
    parsed = {name: ipaddress.ip_address(text) for name, text in addresses.items()}
    return {name: ip for name, ip in parsed.items() if isinstance(ip, IPv4Address)}


def _overlap(entry: InventoryFile, network: IPv4Network, key: Key) -> Iterator[Problem]:
    for name, address in _management(entry).items():
        if address in network:
            yield Problem(
                key, f"{network} holds the management address of '{name}' ({address}); take another"
            )
            return


def _fits(network: IPv4Network, nodes: int) -> bool:
    return FIRST_HOST + nodes - 1 <= network.num_addresses - 2


def _pool(entry: InventoryFile) -> Iterator[Problem]:
    if len(entry.nodes) == 1 or all(node.fabric is not None for node in entry.nodes.values()):
        return  # nothing takes an address from the pool
    pool = entry.fabric.pool
    for index, network in enumerate(pool):
        key: Key = ("fabric", "pool", index)
        if not _fits(network, len(entry.nodes)):
            yield Problem(
                key,
                f"{network} is too small for {len(entry.nodes)} nodes from host {FIRST_HOST} on",
            )
        for other in pool[:index]:
            if network.overlaps(other):
                yield Problem(key, f"{network} overlaps {other}; each twin needs its own subnet")
        yield from _overlap(entry, network, key)


def _explicit(entry: InventoryFile) -> Iterator[tuple[str, Key, list[IPv4Interface]]]:
    for name, node in entry.nodes.items():
        if node.fabric is not None:
            key: Key = ("nodes", name, "fabric", "interfaces")
            yield name, key, [interface.address for interface in node.fabric.interfaces]


def _interfaces(entry: InventoryFile) -> Iterator[Problem]:
    """Each interface on its own, and against the others of its node."""
    for name, key, addresses in _explicit(entry):
        node = entry.nodes[name]
        names = [i.name for i in node.fabric.interfaces] if node.fabric else []
        for index, address in enumerate(addresses):
            at = (*key, index, "address")
            network = address.network
            if names[index] in names[:index]:
                yield Problem((*key, index, "name"), f"'{names[index]}' is given twice")
            if network.prefixlen > 30 or address.ip in (
                network.network_address,
                network.broadcast_address,
            ):
                yield Problem(at, f"found {address}, which is not a host address of a subnet")
            for other in addresses[:index]:
                if network.overlaps(other.network):
                    yield Problem(
                        at,
                        f"{address} is in the subnet of {other}; "
                        "the two twins of a port need different subnets",
                    )
            yield from _overlap(entry, network, at)


def _subnets(entry: InventoryFile) -> Iterator[Problem]:
    """The same twin is in the same subnet on every node, with an address of its own."""
    seen: dict[IPv4Address, str] = {}
    detected = [n for n, node in entry.nodes.items() if node.fabric is None]
    first_name = f"fabric.pool (node '{detected[0]}')" if detected else ""
    expected: list[IPv4Network] = list(entry.fabric.pool) if detected else []
    if detected:
        for index, name in enumerate(entry.nodes):
            if name in detected:
                hosts = [n[FIRST_HOST + index] for n in expected if _fits(n, index + 1)]
                seen.update(dict.fromkeys(hosts, name))
    for name, key, addresses in _explicit(entry):
        networks = [address.network for address in addresses]
        if not expected:
            expected, first_name = networks, f"node '{name}'"
        elif len(networks) != len(expected):
            yield Problem(key, f"found {len(networks)}, but {first_name} has {len(expected)}")
        for index, address in enumerate(addresses):
            at = (*key, index, "address")
            if index < len(expected) and networks[index] != expected[index]:
                yield Problem(
                    at, f"{address} is not in {expected[index]}, the subnet of {first_name}"
                )
            if address.ip in seen:
                yield Problem(at, f"{address.ip} is an address of '{seen[address.ip]}' already")
            seen.setdefault(address.ip, name)
