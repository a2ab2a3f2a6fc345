"""Verdicts: none where there is no difference, and the right one where there is."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_cluster.bench.compare import (
    FLOOR_ALONE,
    FLOOR_SEVERAL,
    Difference,
    differences,
    floor_of,
    holm,
)

Draw = Callable[[random.Random], float]

DISTRIBUTIONS: dict[str, Draw] = {
    "normal, 1 %": lambda r: r.gauss(100, 1),
    "normal, 10 %": lambda r: abs(r.gauss(100, 10)) + 1e-9,
    "normal, 30 %": lambda r: max(r.gauss(100, 30), 1),
    "lognormal": lambda r: r.lognormvariate(3, 1),
    "exponential": lambda r: r.expovariate(1) + 1e-9,
    "pareto": lambda r: r.paretovariate(1.2),
    "uniform": lambda r: r.uniform(50, 150),
    "two modes": lambda r: r.choice([7.0, 11.0]) + r.gauss(0, 0.01),
    "rounded": lambda r: float(r.choice([7, 7, 7, 8])),
    "one run in ten is slow": lambda r: r.gauss(50, 1) if r.random() < 0.1 else r.gauss(100, 1),
}


PAIRS = 100
"""Of each distribution; the same ones each time."""


def one(a, b, floor: float = FLOOR_ALONE, more: bool = True) -> Difference:
    return differences([(a, b, floor, more)])[0]


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("n", [(5, 5), (5, 20), (8, 8), (30, 6)], ids=str)
def test_pairs_of_one_distribution_hardly_ever_get_a_verdict(name, n):
    """Each pair by itself, which is harder than all in one comparison."""
    chance = random.Random(f"{name} {n}")
    draw = DISTRIBUTIONS[name]
    called = 0
    for _ in range(PAIRS):
        a, b = ([draw(chance) for _ in range(count)] for count in n)
        called += one(a, b).verdict in ("better", "worse")
    assert called <= PAIRS / 20, f"{called} of {PAIRS} were called a difference"


def test_all_in_one_comparison_are_corrected_for_their_number():
    chance = random.Random(7)
    pairs = [
        ([chance.gauss(100, 20) for _ in range(6)], [chance.gauss(100, 20) for _ in range(6)])
        for _ in range(1000)
    ]
    found = differences([(a, b, FLOOR_ALONE, True) for a, b in pairs])
    assert sum(one.verdict in ("better", "worse") for one in found) <= 2


def test_a_real_difference_is_called():
    chance = random.Random(3)
    a = [chance.gauss(100, 1) for _ in range(5)]
    b = [chance.gauss(112, 1) for _ in range(5)]
    found = one(a, b)
    assert found.verdict == "better"
    assert found.low < 1.12 < found.high
    assert one(b, a).verdict == "worse"
    assert one(a, b, more=False).verdict == "worse", "of a time less is better"


def test_under_the_floor_nothing_is_called():
    assert one([100, 100.1, 100.2, 99.9, 100], [103, 103.1, 103, 102.9, 103]).verdict == "same"
    a, b = [100, 101, 99, 100, 100], [125, 126, 124, 125, 125]
    assert one(a, b, FLOOR_SEVERAL).verdict == "same"
    assert one(a, b, FLOOR_ALONE).verdict == "better"
    assert (floor_of(1), floor_of(4), floor_of(0)) == (0.05, 0.30, 0.30)


def test_few_runs_get_no_verdict():
    found = one([10, 10, 10, 10], [20, 20, 20, 20, 20])
    assert found.verdict == "too few runs"
    assert found.ratio == pytest.approx(2)
    assert one([10], [20]).ratio == pytest.approx(2)
    assert one([], [1]).ratio is None


def test_noise_is_called_noise():
    assert one([50, 150, 80, 120, 100], [60, 160, 90, 130, 70]).verdict == "too noisy"


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_a_value_without_a_logarithm_has_no_ratio(bad):
    found = one([1, 1, 1, 1, bad], [2] * 5)
    assert (found.ratio, found.verdict) == (None, "too noisy")
    assert found.to_dict()["ratio"] is None


def test_values_that_are_all_alike():
    assert one([7.0] * 5, [7.0] * 5).verdict == "same"
    assert one([7.0] * 5, [9.0] * 5).verdict == "better"


def test_holm():
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []
    assert holm([0.9, 0.9]) == [1.0, 1.0]


VALUES = st.lists(st.floats(1e-6, 1e9), min_size=2, max_size=12)


@given(VALUES, VALUES)
@settings(deadline=None)
def test_the_interval_holds_the_ratio_and_turns_with_the_sides(a, b):
    there, back = one(a, b), one(b, a)
    assert there.low <= there.ratio * (1 + 1e-9)
    assert there.ratio <= there.high * (1 + 1e-9)
    assert there.ratio * back.ratio == pytest.approx(1)
    turned = {"better": "worse", "worse": "better"}
    assert back.verdict == turned.get(there.verdict, there.verdict)
    assert 0 <= there.p <= 1
