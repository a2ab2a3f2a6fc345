"""Which of the machines that were found may be Sparks."""

from __future__ import annotations

from ipaddress import ip_network

from spark_cluster.config.discovery import (
    Announced,
    Candidate,
    Neighbour,
    candidates,
    is_spark_name,
    resolves_to,
)

LAN = [ip_network("192.168.1.0/24")]
NAS = Announced("nas", ("192.168.1.3",))
SPARK = Announced("spark-06c4", ("192.168.1.20",), 2222)
CARD = Neighbour("192.168.1.20", "en0", "4c:bb:47:2b:06:c4")


def test_host_names_of_sparks() -> None:
    sparks = {"spark-06c4", "GX10-9641", "thinkstationpgx-00b4", "spark-06c4-30"}
    assert {host for host in (*sparks, "spark-06c4x", "spark", "spark-06c4-", "nas")
            if is_spark_name(host)} == sparks  # fmt: skip


def test_by_name_where_this_machine_resolves_it() -> None:
    found = candidates([NAS, SPARK], [], LAN, lambda *_: True)
    assert found.candidates == (
        Candidate("spark-06c4.local", "192.168.1.20", "announced by mDNS", named=True, port=2222),
    )
    assert found.others == 1
    found = candidates([SPARK], [], LAN, lambda *_: False)
    assert (found.candidates[0].address, found.candidates[0].also) == ("192.168.1.20", "spark-06c4")


def test_a_machine_under_its_old_name_and_its_new_one_is_listed_once() -> None:
    """P11: caches keep the name that it had before the conflict."""
    renamed = Announced("spark-06c4-2", SPARK.addresses, SPARK.port)
    found = candidates([SPARK, renamed], [], LAN, lambda *_: True)
    assert [one.address for one in found.candidates] == ["spark-06c4.local"]
    assert found.others == 0


def test_hardware_addresses_come_before_announced_names_and_each_machine_once() -> None:
    """Anyone on the network can announce a name."""
    jetson = Neighbour("192.168.1.9", "en0", "4c:bb:47:7b:14:80")
    renamed = Announced("office", ("192.168.1.21",))
    its_card = Neighbour("192.168.1.21", "en0", "4c:bb:47:2b:dd:bf")
    first = Announced("spark-0000", ("192.168.1.4",))
    heard = [first, renamed, SPARK]
    found = candidates(heard, [jetson, CARD, its_card], LAN, lambda *_: False)
    assert [(one.address, one.is_spark) for one in found.candidates] == [
        ("192.168.1.20", True), ("192.168.1.21", False), ("192.168.1.9", False),
        ("192.168.1.4", False),
    ]  # fmt: skip


def test_what_is_proposed_leaves_no_choice() -> None:
    def proposed(heard: list[Announced], cards: list[Neighbour]) -> list[str]:
        found = candidates(heard, cards, LAN, lambda *_: False)
        return [one.address for one in found.obvious]

    other = Announced("spark-1b3b", ("192.168.1.30",))
    third = Announced("spark-1b3c", ("192.168.1.31",))
    cards = [CARD] + [Neighbour(one.addresses[0], "en0", "4c:bb:47:2b:dd:bf")
                      for one in (other, third)]  # fmt: skip
    assert proposed([SPARK], cards[:1]) == ["192.168.1.20"]
    assert proposed([SPARK, other], cards[:2]) == ["192.168.1.20", "192.168.1.30"]
    assert proposed([SPARK], []) == [], "its name is all that is known"
    assert proposed([SPARK, other], cards[:1]) == []
    assert proposed([SPARK, other, third], cards) == [], "more than two"
    assert proposed([SPARK], cards[:2]) == [], "a card of NVIDIA's that may be a Jetson's"
    assert proposed([], []) == []


def test_an_announced_address_elsewhere_is_not_proposed() -> None:
    elsewhere = Announced("spark-06c4", ("203.0.113.9",))
    assert candidates([elsewhere], [], LAN, lambda *_: True).candidates == ()


def test_what_this_machine_resolves() -> None:
    assert resolves_to("localhost", "127.0.0.1")
    assert not resolves_to("localhost", "192.0.2.1")
