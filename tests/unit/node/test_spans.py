"""How long something takes: an estimate in one unit, a clock in two."""

from __future__ import annotations

import pytest

from spark_cluster.node.output import duration, elapsed


@pytest.mark.parametrize(
    ("seconds", "estimate", "clock"),
    [
        (0.0, "1 s", "0 s"),
        (0.6, "1 s", "1 s"),
        (45, "45 s", "45 s"),
        (75, "75 s", "1 min 15 s"),
        (119.6, "2 min", "2 min"),
        (3599.6, "60 min", "1 h"),
        (3659, "61 min", "1 h"),
        (5025, "84 min", "1 h 23 min"),
        (12_240, "3.4 h", "3 h 24 min"),
        (7_200_000, "2000.0 h", "2,000 h"),
    ],
)
def test_a_span_of_time(seconds: float, estimate: str, clock: str) -> None:
    assert (duration(seconds), elapsed(seconds)) == (estimate, clock)
