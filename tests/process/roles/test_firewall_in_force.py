"""The firewall's tables in the kernel, with nft itself: who reaches which port of a node."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Interface
from typing import Any

import pytest
from role_samples import together, yielded
from waiting import HANG_S

from spark_cluster.config.facts import Facts, Interface
from spark_cluster.config.ports import COPIES, EnginePorts
from spark_cluster.config.topology import Link, Node
from spark_cluster.resources import NftTable

pytestmark = pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("nft") or not shutil.which("ip"),
    reason="needs root, nft (package nftables) and ip",
)

SSH, RAY = 22, 6379
PORTS = (SSH, RAY, COPIES[0], COPIES[-1])
DROPPED_S = 1.0
"""Seconds in which a connection that must not come about would have."""

LISTEN = """
import json, os, selectors, socket, sys
os.setuid(int(sys.argv[2]))
waiting = selectors.DefaultSelector()
for port in json.loads(sys.argv[1]):
    # So that few connections that are not answered fill its queue: then Linux sends SYN cookies.
    made = socket.create_server(
        ("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=1
    )
    waiting.register(made, selectors.EVENT_READ)
print("ready", flush=True)
while True:
    for key, _ in waiting.select():
        key.fileobj.accept()[0].close()
"""
KNOCK = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
host, source, limits = json.loads(sys.argv[1])
def reached(asked):
    port, limit = asked
    try:
        socket.create_connection((host, port), limit, source_address=source and (source, 0)).close()
    except OSError:
        return []
    return [port]
with ThreadPoolExecutor(len(limits)) as pool:
    print(json.dumps(sum(pool.map(reached, limits), [])))
"""


class Network:
    """A node, the other node, and a neighbour; the neighbour's bridge is the management network."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.spaces = [f"{name}-{one}" for one in ("node", "peer", "lan")]
        self.listeners: list[subprocess.Popen[str]] = []

    def make(self) -> None:
        node, peer, lan = self.spaces
        for space in self.spaces:
            self.ip("netns", "add", space)
        for command in (
            f"-n {node} link add f0 type veth peer name f0 netns {peer}",
            f"-n {lan} link add br0 type bridge",
            f"-n {lan} link add toNode type veth peer name m0 netns {node}",
            f"-n {lan} link add toPeer type veth peer name m0 netns {peer}",
            f"-n {lan} link set toNode master br0",
            f"-n {lan} link set toPeer master br0",
            f"-n {node} addr add 10.9.9.1/24 dev f0",
            f"-n {peer} addr add 10.9.9.2/24 dev f0",
            f"-n {peer} addr add 10.9.9.3/24 dev f0",
            f"-n {node} addr add 192.168.77.1/24 dev m0",
            f"-n {peer} addr add 192.168.77.2/24 dev m0",
            f"-n {lan} addr add 192.168.77.9/24 dev br0",
            f"-n {node} addr add fd77::1/64 dev m0 nodad",
            f"-n {lan} addr add fd77::9/64 dev br0 nodad",
        ):
            self.ip(*command.split())
        for space, names in ((node, "lo f0 m0"), (peer, "lo f0 m0"), (lan, "lo br0 toNode toPeer")):
            for name in names.split():
                self.ip("-n", space, "link", "set", name, "up")
        self.ip("-n", lan, "route", "add", "10.9.9.1/32", "via", "192.168.77.1")

    def ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, text=True)

    def inside(self, space: str, *words: str) -> list[str]:
        return ["ip", "netns", "exec", f"{self.name}-{space}", *words]

    def load(self, table: NftTable) -> None:
        """Load a table, as the node does it."""
        subprocess.run(self.inside("node", "nft", "-f", "-"), input=table._content(), check=True)

    def listen(self, ports: Sequence[int] = PORTS, user: int = 0) -> None:
        """Have a program of a user listen on ports of the node."""
        words = (json.dumps(ports), str(user))
        argv = self.inside("node", sys.executable, "-I", "-c", LISTEN, *words)
        listener = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
        self.listeners.append(listener)
        assert listener.stdout.readline() == "ready\n"

    def reached(
        self, space: str, host: str, expected: set[int], source: str = "", *, ports=PORTS
    ) -> set[int]:
        """Return the ports that are reached from a place; those `expected` are waited for."""
        limits = [(port, HANG_S if port in expected else DROPPED_S) for port in ports]
        asked = json.dumps([host, source or None, limits])
        argv = self.inside(space, sys.executable, "-I", "-c", KNOCK, asked)
        return set(json.loads(subprocess.run(argv, check=True, stdout=subprocess.PIPE).stdout))

    def end(self) -> None:
        for listener in self.listeners:
            listener.kill()
            listener.communicate()
        for space in self.spaces:
            subprocess.run(["ip", "netns", "del", space], check=False, capture_output=True)


@pytest.fixture
def network() -> Iterator[Network]:
    made = Network(f"sc{os.getpid()}")
    try:
        made.make()
        made.listen()
        yield made
    finally:
        made.end()


def node(number: int) -> Node:
    fabric, lan = (IPv4Interface(f"{net}.{number}/24") for net in ("10.9.9", "192.168.77"))
    interfaces = (
        Interface("f0", "", 9000, True, (fabric,)),
        Interface("m0", "", 1500, True, (lan,)),
    )
    facts = Facts(interfaces=interfaces)
    return Node(f"spark{number}", str(lan.ip), facts=facts, links=(Link("f0", fabric),))


def tables(**settings: Any) -> list[NftTable]:
    found = yielded("firewall", together(node(1), node(2))[0], **settings)
    return [one for one in found if isinstance(one, NftTable)]


COPYING = {*COPIES} & {*PORTS}


def test_only_the_other_node_reaches_the_ports_of_copies(network):
    [table] = tables(state="copies", ports=((COPIES[0], COPIES[-1]),))
    network.load(table)
    network.load(table)  # again is in order
    rest = {*PORTS} - COPYING
    for space, host, source, expected in (
        ("lan", "192.168.77.1", "", rest),
        ("lan", "fd77::1", "", rest),
        ("lan", "10.9.9.1", "", rest),
        ("peer", "10.9.9.1", "10.9.9.2", {*PORTS}),
        ("peer", "10.9.9.1", "10.9.9.3", rest),
        ("peer", "192.168.77.1", "192.168.77.2", {*PORTS}),
        ("node", "10.9.9.1", "", rest),
    ):
        assert network.reached(space, host, expected, source) == expected, (space, host, source)


def test_both_tables_together_let_the_other_node_in_and_nobody_else(network):
    spans = EnginePorts().spans
    [engine] = tables(state="present", peers=("spark1", "spark2"), ports=spans)
    [copies] = tables(state="copies", ports=((COPIES[0], COPIES[-1]),))
    for table in (engine, copies):
        network.load(table)
    for space, host, source, expected in (
        ("lan", "192.168.77.1", "", {SSH}),
        ("lan", "10.9.9.1", "", set()),
        ("peer", "10.9.9.1", "10.9.9.2", {*PORTS}),
        ("peer", "10.9.9.1", "10.9.9.3", {SSH}),
        ("peer", "192.168.77.1", "192.168.77.2", {SSH, *COPYING}),
    ):
        assert network.reached(space, host, expected, source) == expected, (space, host, source)


@pytest.mark.parametrize("user", [0, 33, 1000, 62_000])
def test_nobody_without_rights_answers_in_the_place_of_a_server_or_the_endpoint(network, user):
    """Whoever listens there while the engine loads, or the proxy is down, would be sent prompts,
    and by clients the API key. 62000 is a user that systemd makes, as it does for the proxy."""
    served, other = [8000, 18000], 9000
    answering = (("spark1", 8000), ("spark1", 18000), ("spark2", other))
    network.load(tables(state="present", served=answering)[0])
    network.listen([*served, other], user)
    expected = {*served, other} if user in (0, 62_000) else {other}
    for space, host in (("node", "127.0.0.1"), ("node", "::1"), ("lan", "192.168.77.1")):
        found = network.reached(space, host, expected, ports=[*served * 4, other])
        assert found == expected, (space, host)
