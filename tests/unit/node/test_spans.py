"""How long something takes: an estimate in one unit, a clock in two."""

from cases import each_row

from spark_cluster.node.output import duration, elapsed


@each_row(__file__, "spans.json", "spans")
def test_a_span_of_time(seconds, estimate, clock):
    assert (duration(seconds), elapsed(seconds)) == (estimate, clock)
