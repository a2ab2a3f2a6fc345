"""How long something takes: an estimate in one unit, a clock in two."""

from __future__ import annotations

from cases import each_row

from spark_cluster.node.output import duration, elapsed


@each_row(__file__, "spans.json", "spans")
def test_a_span_of_time(seconds: float, estimate: str, clock: str) -> None:
    assert (duration(seconds), elapsed(seconds)) == (estimate, clock)
