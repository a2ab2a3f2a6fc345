"""The link's constants as `bench fabric` measured them, alone and with runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
from speed_samples import GEMMA_31B

from spark_cluster.errors import UsageError
from spark_cluster.plan.calibrate import Point
from spark_cluster.plan.estimate import Constants
from spark_cluster.plan.runs import MeasuredLink, fitted
from spark_cluster.plan.serving import ServingSetup

LINK = MeasuredLink(latency_us=40, low_us=38, high_us=50, bytes_s=2e10)


def points(constants: Constants, tp: int) -> list[Point]:
    """Runs of a Spark with these constants."""
    serving = ServingSetup(GEMMA_31B, "fp8", "auto", tp=tp)
    blank = [Point(serving, "decode_tok_s", 1.0, n, label="planted") for n in (100, 2000, 8000)]
    return [replace(point, value=1 / point.predicted(constants)) for point in blank]


def test_the_link_alone():
    found = fitted([], LINK)
    assert (found.points, found.fitted, found.left_out) == (0, (), None)
    assert found.constants.allreduce_us == 40
    assert found.constants.link == 2e10
    assert found.constants.eta_dense == Constants().eta_dense


def test_neither_link_nor_runs():
    with pytest.raises(UsageError, match="found 0 usable points"):
        fitted([], None)


def test_runs_over_two_nodes_have_the_last_word():
    """The time that an engine adds to an all-reduce is in the runs only."""
    found = fitted(points(replace(Constants(), allreduce_us=80.0), tp=2), LINK)
    assert found.constants.allreduce_us == pytest.approx(80, rel=0.05)
    assert found.measured == ("link",)


def test_runs_on_one_node_leave_the_link_as_it_was_measured():
    found = fitted(points(replace(Constants(), eta_dense=0.7), tp=1), LINK)
    assert found.constants.eta_dense == pytest.approx(0.7, rel=0.01)
    assert found.constants.allreduce_us == 40
    assert "allreduce_us" in found.measured


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"latency_us": 5000.0}, "allreduce_us: measured 5000"),
        ({"high_us": 1e5}, "allreduce_high_us: measured 100000"),
        ({"bytes_s": 1e3}, "link: measured 1000"),
        ({"bytes_s": float("nan")}, "link: measured nan"),
    ],
)
def test_a_link_that_cannot_be(change, said):
    with pytest.raises(UsageError, match=said):
        fitted([], replace(LINK, **change))
