"""The bars of the predictions: each family predicted by constants that never saw it."""

import json
import math
from dataclasses import fields

import pytest

pytest.importorskip("scipy")

from benchmarks.predictions.__main__ import COVERED, FITTED, WANTED, by_situation
from benchmarks.predictions.evaluate import evaluate
from benchmarks.predictions.points import measured
from spark_cluster.plan.estimate import Constants
from spark_cluster.plan.evidence import measured_runs
from spark_cluster.plan.speed import shortest


@pytest.fixture(scope="module")
def found():
    return evaluate()


@pytest.mark.parametrize("situation", WANTED)
def test_bars(found, situation):
    count, error, covered, _ = by_situation(found.left_out)[situation]
    assert count >= 9
    assert error <= WANTED[situation]
    assert covered >= COVERED


def test_a_range_says_something(found):
    widths = {situation: row[3] for situation, row in by_situation(found.left_out).items()}
    assert widths["decode"] < 1.6
    assert max(width for situation, width in widths.items() if situation != "drafted") < 2.2


def test_runs_that_no_fit_used_lie_in_the_range_that_other_families_give(found):
    covered = by_situation(found.held_out)["decode"][2]
    assert covered >= COVERED


def test_the_shipped_constants_are_those_of_the_fit(found):
    for field in fields(Constants):
        if field.name != "basis":
            shipped = getattr(Constants(), field.name)
            assert shipped == pytest.approx(getattr(found.shipped, field.name), rel=0.02), (
                field.name
            )


def test_the_shipped_ranges_and_corrections_are_those_of_the_fit(found):
    shipped = json.loads(FITTED.read_text())
    assert shipped["models"].keys() == dict(found.models).keys()
    for name, factor in found.models.items():
        assert shipped["models"][name] == pytest.approx(factor, rel=0.02)
    for situation, kinds in found.ranges.items():
        for kind, (low, high) in kinds.items():
            assert shipped["ranges"][situation][kind] == pytest.approx([low, high], rel=0.03)


def test_nothing_that_was_measured_is_above_the_printed_bound():
    for one in measured():
        if one.situation == "prefill":
            continue
        point, share = one.point, one.point.accepted_share
        tokens = 1 + one.run.drafted * (1.0 if share is None else share)
        least = shortest(one.serving, point.context, point.users, Constants())
        assert one.value <= tokens / least, one.run.id


def test_every_measurement_has_a_source_and_every_exclusion_a_reason():
    assert len(measured_runs()) >= 80
    for run in measured_runs():
        assert run.source.title, run.id
        assert run.points, run.id
        assert not run.excluded or len(run.excluded) > 20
        for point in run.points:
            assert 0 < point.low <= point.high < math.inf
    linked = [run for run in measured_runs() if run.source.link.startswith("https://")]
    assert len(linked) >= len(measured_runs()) - 6
