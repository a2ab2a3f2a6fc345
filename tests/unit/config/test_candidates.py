"""Which of the machines that were found may be Sparks, and which one is at the cable."""

from __future__ import annotations

import json
from ipaddress import ip_network
from typing import Any

from cases import cases

from spark_cluster.config.discovery import (
    Announced,
    Candidate,
    Neighbour,
    Peer,
    candidates,
    is_spark_name,
    peers,
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


def test_not_every_name_that_someone_announces_is_looked_up() -> None:
    """Each may take seconds, and one packet has many."""
    asked: list[str] = []
    heard = [Announced(f"spark-{n:04x}", (f"192.168.1.{n}",)) for n in range(1, 200)]
    found = candidates(heard, [], LAN, lambda name, _: bool(asked.append(name)) or True)
    assert len(found.candidates) == len(heard)
    assert len(asked) <= 16


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


# --- who is at the other end of a Spark's cable, from what that Spark is asked --------------------


HCAS, MDNS, NEIGH = cases(__file__, "cable.toml").values()


def answer(**printed: str) -> dict[str, Any]:
    ran = {name: {"status": 0, "stdout": text} for name, text in printed.items()}
    return {"commands": {"hcas": None, "mdns": None, "neigh": None, **ran}}


def test_by_the_name_that_is_announced_at_the_cable() -> None:
    assert peers(answer(hcas=HCAS, mdns=MDNS, neigh=NEIGH)) == [Peer("spark-1b3b", "192.168.1.21")]


def test_without_an_announcement_elsewhere_its_address_is_not_known() -> None:
    only = "\n".join(line for line in MDNS.splitlines() if "enP7s7" not in line)
    assert peers(answer(hcas=HCAS, mdns=only)) == [Peer("spark-1b3b", None)]


def test_without_avahi_the_twins_are_one_machine() -> None:
    assert peers(answer(hcas=HCAS, neigh=NEIGH)) == [Peer("", None, "4c:bb:47:e9:0a:10")]


def test_no_cable_no_peer() -> None:
    assert peers(answer(mdns=MDNS, neigh=NEIGH)) == []
    assert peers(answer(hcas=HCAS)) == []


V4 = {"family": "inet", "prefixlen": 16}
OWN = json.dumps(
    [
        {"ifname": "enP7s7", "addr_info": [V4 | {"local": "192.168.1.20"}]},
        {"ifname": "enp1s0f1np1", "addr_info": [V4 | {"local": "169.254.10.19"}]},
    ]
)


def test_a_node_that_hears_itself_is_not_its_own_peer() -> None:
    """P11: what it announces comes back over the cable, under this name or an earlier one."""
    echo = (
        "=;enp1s0f1np1;IPv4;{0};SSH Remote Terminal;local;{0}.local;169.254.10.19;22;\n"
        "=;enP7s7;IPv4;{0};SSH Remote Terminal;local;{0}.local;192.168.1.20;22;\n"
    )
    heard = echo.format("spark-06c4") + MDNS + echo.format("spark-06c4-30")
    told = answer(hcas=HCAS, mdns=heard, neigh=NEIGH, ip=OWN)
    assert peers(told) == [Peer("spark-1b3b", "192.168.1.21")]
