"""Machines that announce SSH, by a real responder on the loopback."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from ipaddress import ip_network

import pytest
from waiting import HANG_S

from spark_cluster.discovery import mdns
from spark_cluster.discovery.mdns import Announced


@pytest.fixture(scope="module")
def found() -> Iterator[list[Announced]]:
    """What is found of a Spark, a second one with two addresses, and hosts of no use."""
    from zeroconf import ServiceInfo, Zeroconf

    def ssh(host: str, *addresses: str, port: int = 22) -> ServiceInfo:
        packed = [socket.inet_aton(address) for address in addresses]
        return ServiceInfo(mdns.SERVICE, f"{host}.{mdns.SERVICE}", port, addresses=packed,
                           server=f"{host}.local.")  # fmt: skip

    responder = Zeroconf(interfaces=["127.0.0.1"])
    try:
        for info in (
            ssh("spark-2a60", "127.0.0.1", port=2222),
            ssh("Spark-1B3B", "169.254.10.20", "127.0.0.3"),
            ssh("spark two; reboot", "127.0.0.4"),
            ssh("spark-0000", "224.0.0.1"),
        ):
            responder.registry.async_add(info)  # without probing for a second: the names are ours
        yield mdns.browse(HANG_S, "127.0.0.1", enough=4)
    finally:
        responder.close()


def test_who_announces_ssh_is_found(found: list[Announced]) -> None:
    ours = [one for one in found if one.host in ("spark-2a60", "spark-1b3b")]
    assert ours == [
        Announced("spark-1b3b", ("127.0.0.3", "169.254.10.20")),
        Announced("spark-2a60", ("127.0.0.1",), 2222),
    ]


def test_what_is_no_host_name_or_no_machine_is_left_out(found: list[Announced]) -> None:
    assert {one.host for one in found} & {"spark two; reboot", "spark-0000"} == set()


def test_an_address_that_is_not_here_is_not_believed() -> None:
    here = [ip_network("192.168.1.0/24"), ip_network("169.254.0.0/16")]
    assert mdns.nearest(["169.254.1.1", "192.168.1.7"], here) == "192.168.1.7"
    assert mdns.nearest(["169.254.1.1"], here) == "169.254.1.1"
    assert mdns.nearest(["203.0.113.9"], here) is None


def test_the_networks_of_this_machine() -> None:
    assert ip_network("127.0.0.0/8") in mdns.networks()
