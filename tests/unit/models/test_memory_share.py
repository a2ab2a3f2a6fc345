"""Shares of a node's memory."""

from __future__ import annotations

from spark_cluster.config.facts import Memory
from spark_cluster.models.memory_share import least, share_of, utilization


def test_a_share_holds_what_is_needed_and_no_more_than_there_is() -> None:
    assert (least(50.0, 120.0), share_of(50.0, 120.0)) == (0.42, 0.41)
    assert (least(60.0, 120.0), share_of(60.0, 120.0)) == (0.5, 0.5)


def test_a_node_that_tells_no_memory_has_no_share() -> None:
    assert (least(1.0, 0.0), share_of(1.0, 0.0), utilization(Memory())) == (0.0, 0.0, 0.0)
