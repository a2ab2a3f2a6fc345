"""Who is at the other end of a Spark's cable, from what that Spark is asked."""

from __future__ import annotations

import json
from typing import Any

from cases import cases

from spark_cluster.config.discovery import Peer, peers

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
