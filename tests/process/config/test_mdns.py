"""Machines that announce SSH, by a real responder on the loopback, and neighbours."""

from __future__ import annotations

import os
import socket
import struct
import threading
from collections.abc import Iterator
from ipaddress import ip_network

import pytest
from cases import cases
from waiting import until

from spark_cluster.config import discovery
from spark_cluster.config.discovery import Announced, Neighbour, candidates

SPARK, OTHER = f"spark-b{os.getpid() & 0xFFF:03x}", f"spark-a{os.getpid() & 0xFFF:03x}"
COUNTED = f"{SPARK}-30"
"""Names of our own: other tests of this machine announce theirs at the same time."""

MDNS = ("224.0.0.251", 5353)


@pytest.fixture(scope="module")
def found() -> Iterator[list[Announced]]:
    """What is found of a Spark, a second one with two addresses, and hosts of no use."""
    from zeroconf import ServiceInfo, Zeroconf

    def ssh(host: str, *addresses: str, port: int = 22) -> ServiceInfo:
        packed = [socket.inet_aton(address) for address in addresses]
        return ServiceInfo(discovery.SERVICE, f"{host}.{discovery.SERVICE}", port, addresses=packed,
                           server=f"{host}.local.")  # fmt: skip

    def ours() -> list[Announced]:
        found = discovery.browse(1.3, "127.0.0.1")
        return found if {SPARK, OTHER, COUNTED} <= {one.host for one in found} else []

    responder = Zeroconf(interfaces=["127.0.0.1"])
    try:
        for info in (
            ssh(SPARK, "127.0.0.1", port=2222),
            ssh(OTHER.upper(), "169.254.10.20", "127.0.0.3"),
            ssh("spark two; reboot", "127.0.0.4"),
            ssh(COUNTED, "127.0.0.5"),
            ssh("spark-0000", "224.0.0.1"),
        ):
            responder.registry.async_add(info)  # without probing for a second: the names are ours
        yield until(ours, what="what is announced is found")
    finally:
        responder.close()


def test_who_announces_ssh_is_found(found: list[Announced]) -> None:
    ours = [one for one in found if one.host in (SPARK, OTHER)]
    assert ours == [
        Announced(OTHER, ("127.0.0.3", "169.254.10.20")),
        Announced(SPARK, ("127.0.0.1",), 2222),
    ]


def test_what_is_no_host_name_or_no_machine_is_left_out(found: list[Announced]) -> None:
    assert {one.host for one in found} & {"spark two; reboot", "spark-0000"} == set()


@pytest.mark.usefixtures("found")  # whose responder answers
def test_names_of_nothing_hide_no_machine() -> None:
    """A neighbour announces many names that it says no more of, and some that are none."""
    kind = ["_ssh", "_tcp", "local"]
    names = [["x"], ["evil", "_http", "_tcp", "local"], ["a\x01", *kind], ["a" * 63] * 3 + kind]
    names += [[f"a{number}", *kind] for number in range(40)]
    packets = [announcement(kind, name) for name in names]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as neighbour:
        neighbour.bind(("127.0.0.1", 0))
        loopback = socket.inet_aton("127.0.0.1")
        neighbour.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, loopback)

        def is_found() -> bool:
            later = threading.Timer(0.3, lambda: [neighbour.sendto(p, MDNS) for p in packets])
            later.start()
            hosts = {one.host for one in discovery.browse(1.3, "127.0.0.1")}
            later.join()
            return SPARK in hosts

        until(is_found, what="a machine among many names")


def announcement(kind: list[str], name: list[str]) -> bytes:
    """Return an mDNS answer that names a service and tells nothing about it."""
    service, named = (
        b"".join(bytes([len(label)]) + label.encode() for label in labels) + b"\0"
        for labels in (kind, name)
    )
    pointer = service + struct.pack(">HHIH", 12, 1, 120, len(named)) + named
    return struct.pack(">6H", 0, 0x8400, 0, 1, 0, 0) + pointer


def test_a_name_that_avahi_counted_up_is_a_sparks_and_not_relied_on(found) -> None:
    """P11: the next conflict gives it another name, so the inventory gets its address."""
    ours = [one for one in found if one.host in (SPARK, COUNTED)]
    listed = candidates(ours, [], [ip_network("127.0.0.0/8")], lambda *_: True).candidates
    assert [(one.address, one.also, one.named) for one in listed] == [
        (f"{SPARK}.local", "127.0.0.1", True),
        ("127.0.0.5", COUNTED, True),
    ]
    assert "avahi" in listed[1].why


def test_an_address_that_is_not_here_is_not_believed() -> None:
    here = [ip_network("192.168.1.0/24"), ip_network("169.254.0.0/16")]
    assert discovery.nearest(["169.254.1.1", "192.168.1.7"], here) == "192.168.1.7"
    assert discovery.nearest(["169.254.1.1"], here) == "169.254.1.1"
    assert discovery.nearest(["203.0.113.9"], here) is None


def test_the_networks_of_this_machine() -> None:
    assert ip_network("127.0.0.0/8") in discovery.networks()


# --- neighbour tables, as Linux and macOS print them ----------------------------------------------


LINUX, MACOS = cases(__file__, "neighbours.toml").values()


def test_linux() -> None:
    assert discovery.ip_neigh(LINUX) == [
        Neighbour("10.89.0.13", "br-spark", "4c:bb:47:00:03:00"),
        Neighbour("192.0.2.1", "eth0", "02:fc:00:00:00:05"),
    ]
    assert [one.is_nvidia for one in discovery.ip_neigh(LINUX)] == [True, False]


@pytest.mark.parametrize("text", ["", "[]", 'Object "neigh" is unknown', '[{"dst": "x"}, 7]'])
def test_linux_that_says_nothing(text: str) -> None:
    assert discovery.ip_neigh(text) == []


def test_macos() -> None:
    found = discovery.arp(MACOS)
    assert Neighbour("192.168.1.2", "en1", "4c:bb:47:2b:06:c4") in found
    assert Neighbour("192.168.1.1", "en1", "00:18:01:8f:23:ed") in found
    assert not {"169.254.77.120", "224.0.0.251"} & {one.address for one in found}


def test_a_tool_that_is_not_there_or_hangs(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert discovery.of_this_machine() == []
