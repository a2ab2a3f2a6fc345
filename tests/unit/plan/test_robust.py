"""The fit by itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_cluster.plan.calibrate import System, Undecided

shares = st.floats(0.05, 1)


@given(st.lists(st.tuples(shares, shares), min_size=4, max_size=12), shares, shares)
def test_what_fits_exactly_is_found(rows, first, second):
    spread = max(a / b for a, b in rows) / min(a / b for a, b in rows)
    fixed = [1 - a * first - b * second for a, b in rows]
    system = System(rows, fixed)
    if spread < 1.5:  # nearly the same equation again and again
        return
    assert system.fit([0, 1], [1.0, 1.0]) == pytest.approx([first, second], rel=1e-4)
    assert all(abs(system.error(i, [first, second])) < 1e-9 for i in range(len(rows)))
    assert system.fit([1], [first, 9.9]) == pytest.approx([first, second], rel=1e-4)


def test_an_outlier():
    system = System([[1.0]] * 9 + [[2.0]], [0.0] * 10)
    assert system.fit([0], [3.0])[0] == pytest.approx(1.0, abs=0.02)


def test_undecided():
    with pytest.raises(Undecided):
        System([[1.0, 2.0], [2.0, 4.0]], [0.0, 0.0]).fit([0, 1], [1.0, 1.0])
    with pytest.raises(Undecided):
        System([[0.0]], [1.0]).fit([0], [1.0])


def test_nothing_to_fit():
    assert System([[1.0]], [0.5]).fit([], [0.25]) == [0.25]


def test_points_left_out():
    exact = System([[0.5], [1.0], [0.8]], [0.5, 0.0, 0.2])
    assert exact.left_out_error([0], [2.0]) == pytest.approx(0, abs=1e-9)
    assert System([[1.0]], [0.0]).left_out_error([0], [1.0]) is None
    assert System([[1.0, 0.5], [0.5, 1.0]], [0.0, 0.0]).left_out_error([0, 1], [1, 1]) is None
    # the second figure is in the last equation only, so there it stays as it was: 0.5 off
    alone = System([[1.0, 0.0], [1.0, 0.0], [0.5, 0.5]], [0.0, 0.0, 0.0])
    assert alone.left_out_error([0, 1], [1.0, 2.0]) == pytest.approx(0.5 / 3)


def test_what_a_column_has_beyond_others():
    system = System([[1.0, 2.0, 1.0], [2.0, 4.0, 0.0], [0.0, 0.0, 3.0]], [0.0] * 3)
    assert system.unexplained(0, []) == pytest.approx(5**0.5)
    assert system.unexplained(1, [0]) == pytest.approx(0, abs=1e-12)
    assert system.unexplained(2, [0]) == pytest.approx((10 - 1 / 5) ** 0.5)
