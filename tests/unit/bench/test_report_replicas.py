"""Replicas in a report: whether they or TP=2 serve many users better."""

import re
from typing import Any

import pytest
from bench_records import dual_record

from spark_cluster.bench.record import CellResult, Metric, Record
from spark_cluster.bench.report.results import Results, answers, lead


def metric(*values: float) -> Metric:
    return Metric(mean=sum(values) / len(values), values=values)


QUIET = (0.99, 1.0, 1.0, 1.0, 1.01)
LOUD = (0.4, 0.8, 1.0, 1.2, 1.6)


def record_with(factors: dict[tuple[str, int], float], spread: tuple[float, ...]) -> Record:
    """The made-up run with these throughputs at (setup, load); all else is left out."""
    found: list[CellResult] = []
    for cell in dual_record().cells:
        value = factors.get((cell.setup, cell.key.concurrency))
        if value is not None and cell.key.depth == 0:
            figures: dict[Any, Metric] = {"tg_tps": metric(*(value * s for s in spread))}
            found.append(cell.model_copy(update={"metrics": figures}))
    return dual_record().model_copy(update={"cells": tuple(found)})


def many_users(factors: dict[tuple[str, int], float], spread: tuple[float, ...] = QUIET) -> Any:
    return list(answers(Results(record_with(factors, spread))))[2]


def test_many_users_at_the_highest_load_and_at_each_other_one():
    alone = {("tp1", 2): 5.0}
    found = many_users(
        {**alone, ("tp2", 2): 20.0, ("replicas", 2): 12.0, ("tp2", 8): 40.0, ("replicas", 8): 64.0}
    )
    assert found.winner == "2 × TP=1"
    assert found.text.startswith("64.00 tok/s at tg128 (c8), 1.60× as fast as TP=2 (40.00 tok/s)")
    assert "95 % interval" in found.text
    assert "At c=2: TP=2, 1.67×" in found.text


def test_intervals_that_overlap_are_too_noisy_for_a_winner():
    found = many_users({("tp1", 2): 5.0, ("tp2", 8): 40.0, ("replicas", 8): 64.0}, LOUD)
    assert found.winner == ""
    assert "too noisy to tell (1.60×, 95 % interval" in found.text
    assert found.text.startswith("2 × TP=1, "), "whose figure it is"


def test_what_identical_servers_differ_by_is_no_lead():
    found = many_users({("tp1", 2): 5.0, ("tp2", 8): 40.0, ("replicas", 8): 48.0})
    assert found.winner == ""
    assert "identical runs differ as much (1.20×, 95 % interval" in found.text


@pytest.mark.parametrize(("name", "first", "other"), [
    ("tg_tps", metric(20, 21, 20), metric(10, 10, 11)),
    ("ttfr_ms", metric(10, 10, 11), metric(20, 21, 20)),
])  # fmt: skip
def test_a_lead_is_above_one_for_speeds_and_for_times(name, first, other):
    found = lead(name, first, other, 1)
    low, high = map(float, re.findall(r"([0-9.]+)×", found.interval))
    assert 1 < low < found.ratio < high
    assert not found.why_open


def test_one_run_gives_no_winner():
    found = lead("tg_tps", metric(20.0), metric(10.0), 1)
    assert found.why_open == "2.00×, too few runs for an interval"
    assert lead("tg_tps", metric(20.0), metric(0.0), 1) is None
