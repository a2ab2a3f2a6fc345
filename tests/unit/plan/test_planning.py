"""Plans: the share of the memory, and the nodes that serve."""

from __future__ import annotations

import pytest
from factories import make_node
from hypothesis import given
from hypothesis import strategies as st

from spark_cluster.config.facts import Memory
from spark_cluster.engine.resolve import serving
from spark_cluster.errors import Refused
from spark_cluster.models.memory_share import (
    GIB_KIB,
    HIGHEST,
    OUTSIDE_GIB,
    RESERVE_GIB,
    utilization,
)

SPARK = 127_600_748
"""MemTotal of a Spark, KiB."""


def test_on_a_spark():
    assert utilization(Memory(SPARK, 123_731_900)) == HIGHEST
    assert utilization(Memory(SPARK, SPARK // 2)) == 0.42
    assert utilization(Memory(SPARK, 9 * GIB_KIB)) == 0.0
    assert utilization(Memory()) == 0.0


memories = st.integers(1, 4 * SPARK).flatmap(
    lambda total: st.tuples(st.just(total), st.integers(0, total))
)


@given(memories)
def test_never_more_than_vllm_lets_start(memory):
    total, available = memory
    share = utilization(Memory(total, available))
    assert 0.0 <= share <= HIGHEST
    assert share == round(share, 2)
    if share > 0:
        left = available - share * total  # KiB
        assert left >= (OUTSIDE_GIB + RESERVE_GIB) * GIB_KIB - 1


@given(memories, st.integers(0, 10**8))
def test_more_memory_is_never_a_smaller_share(memory, more):
    total, available = memory
    larger = min(available + more, total)
    assert utilization(Memory(total, available)) <= utilization(Memory(total, larger))


@given(memories)
def test_no_room_is_given_away(memory):
    """The share is the largest that fits: a hundredth more would not."""
    total, available = memory
    share = utilization(Memory(total, available))
    free = available - (OUTSIDE_GIB + RESERVE_GIB) * GIB_KIB
    assert share == HIGHEST or (share + 0.01) * total > free - 1


def test_the_head_serves_first():
    one, two, three = make_node("a", head=False), make_node("b"), make_node("c", head=False)
    assert serving([one, two, three], 2) == ([two, one], [three])
    assert serving([one, two], 1) == ([two], [one])


def test_too_few():
    with pytest.raises(Refused, match=r"--tp 2 needs 2 nodes; there is 1 \(a\)") as caught:
        serving([make_node("a")], 2)
    assert "use --tp 1" in caught.value.hint
    for nodes in ([], [make_node("b", head=False)]):
        with pytest.raises(Refused, match="the head is not among the chosen nodes"):
            serving(nodes, 1)
