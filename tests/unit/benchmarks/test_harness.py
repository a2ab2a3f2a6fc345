"""The figures of the harness benchmark, from made-up runs."""

import math
import random

import pytest

from benchmarks.harness import figures
from benchmarks.harness.lab_head import reading


def record(*spans, status="ok"):
    moment = "2026-11-22T12:{:02}:{:06.3f}Z"
    return {
        "cells": [
            {
                "id": f"c{number}",
                "status": status,
                "started": moment.format(0, float(begin)),
                "finished": moment.format(0, float(end)),
                "metrics": {"tg_tps": {"values": [10.0, 12.0]}},
            }
            for number, (begin, end) in enumerate(spans)
        ]
    }


def test_the_time_between_and_around_cells():
    run = record((0, 10), (12.5, 20), (21, 31))
    assert figures.gaps(run) == pytest.approx([2.5, 1.0])
    assert figures.around(run, 36.5) == pytest.approx(3.0)
    assert figures.gaps(record((0, 10))) == []
    assert math.isnan(figures.around(record(), 5.0))


def test_by_how_much_it_differs():
    ours = [{"a": [9.9, 9.9], "b": [20.0]}, {"a": [9.9], "c": [1.0]}]
    theirs = [{"a": [10.0, 10.0], "b": [20.0]}]
    assert figures.deviation(ours, theirs).share == pytest.approx(-0.005, abs=1e-4)
    assert figures.deviation(theirs, ours).share == pytest.approx(0.005, abs=1e-4)
    assert math.isnan(figures.deviation(ours, theirs).low), "two repetitions give no interval"
    assert math.isnan(figures.deviation([], []).share)


@pytest.mark.parametrize(
    ("factor", "scatter", "text"),
    [(1.0, 0.001, "met"), (1.05, 0.001, "not met"), (1.0, 0.3, "not shown: it scatters too much")],
)
def test_scatter_is_no_difference(factor, scatter, text):
    drawn = random.Random(1)
    theirs = [{"a": [drawn.gauss(100, 100 * scatter) for _ in range(15)]}]
    ours = [{"a": [factor * drawn.gauss(100, 100 * scatter) for _ in range(15)]}]
    assert figures.deviation(ours, theirs).verdict.text == text


def test_what_is_met():
    same = figures.Deviation(0.004, -0.002, 0.008)
    judged = figures.verdicts(same, [1.0, 5.5], [3.0], [0.002, 0.008])
    assert [one.met for one in judged] == [True, False, True, True]
    assert judged[0].shown == "+0.40% (-0.20% to +0.80%)"
    assert judged[1].shown == "5.5 s"


def test_a_reading_of_the_sampler():
    stat = "77 (python3 (x)) S 1 77 77 0 -1 4194560 1 0 0 0 120 30 5 6 20 0 2 0 100 1 1\n"
    assert reading(f"1000.50 1900.00\n{stat}", 100) == (1000.5, 1.5)
    assert reading("", 100) is None
    assert reading("1000.50 1900.00\n", 100) is None
