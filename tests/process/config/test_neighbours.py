"""Neighbour tables, as Linux and macOS print them."""

from __future__ import annotations

import pytest
from cases import cases

from spark_cluster.config import discovery
from spark_cluster.config.discovery import Neighbour

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
