"""The load and the nodes that each replica gets, and where they meet."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Interface
from typing import Any

import pytest
from factories import make_node

from spark_cluster.bench.expansion import expand, measurable
from spark_cluster.bench.replica_split import meeting_address, share
from spark_cluster.bench.suite_schema import Suite
from spark_cluster.engine.nodes import groups
from spark_cluster.errors import Refused
from spark_cluster.topology import Link


def cells(**suite: Any) -> dict[int, Any]:
    given = Suite.model_validate({"name": "s", "recipes": ["r"], "replicas": 2, **suite})
    return {cell.key.concurrency: cell for cell in measurable(given, expand(given)).cells}


def test_only_loads_that_can_be_divided_evenly_are_measured():
    found = cells(concurrency=[1, 2, 3, 8])
    assert {level for level, cell in found.items() if not cell.skip} == {2, 8}
    assert found[3].skip == "3 requests at once cannot be divided evenly among 2 replicas"
    assert share(found[8], 2).key.concurrency == 4
    assert share(found[8], 2).id == found[8].id


def test_other_tools_and_kinds_are_not_measured_with_replicas():
    for suite in ({"tool": "vllm-bench", "request_rate": [1.0]}, {"kind": "vision"}):
        assert all(cell.skip for cell in cells(**suite).values())


def test_each_replica_has_nodes_of_its_own():
    assert groups(["a", "b", "c"], 1, 2) == [["a"], ["b"]]
    assert groups(["a", "b", "c", "d"], 2, 2) == [["a", "b"], ["c", "d"]]
    with pytest.raises(Refused, match=r"2 replicas at TP=1 need 2 nodes; there are 1 \(a\)"):
        groups(["a"], 1, 2)


def test_they_meet_on_the_link_where_it_is_configured():
    a = make_node("a", own=("10.0.0.1/24", "192.168.177.11/24"))
    b = make_node("b", own=("10.0.0.2/24", "192.168.177.12/24"), head=False)
    link = Link("eth0", IPv4Interface("192.168.177.11/24"))
    assert meeting_address([replace(a, links=(link,)), b]) == "192.168.177.11"
    planned = Link("eth0", IPv4Interface("192.168.200.11/24"))
    assert meeting_address([replace(a, links=(planned,)), b]) == "10.0.0.1", "not configured yet"


def test_an_address_that_both_have_is_no_place_to_meet():
    """Docker's bridge has the same one on each node."""
    a = make_node("a", own=("127.0.0.1/8", "172.17.0.1/16", "10.0.0.1/24"))
    b = make_node("b", own=("127.0.0.1/8", "172.17.0.1/16", "10.0.0.2/24"), head=False)
    assert meeting_address([a, b]) == "10.0.0.1"
    elsewhere = make_node("b", own=("172.17.0.1/16", "10.9.0.2/24"), head=False)
    with pytest.raises(Refused, match="a has no address in a network of b"):
        meeting_address([a, elsewhere])
