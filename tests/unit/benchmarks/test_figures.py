"""Figures of the engine benchmark from its measurements."""

import pytest

from benchmarks.engine.figures import compared, ratios, scaled
from benchmarks.engine.run import CHANGING, UNCHANGED, Cost, medians


def cost(tool, wall, *, nodes=2, kind=UNCHANGED, cpu=1.0, sessions=1.0, turns=8.0):
    return Cost(tool, nodes, kind, wall, cpu, 1.0, sessions, turns, 0.0, 0.0)


def test_the_median_is_taken_of_each_tool_number_of_nodes_and_kind():
    costs = [cost("ours", 1.0), cost("floor", 9.0), cost("ours", 5.0), cost("ours", 2.0)]
    costs.append(cost("ours", 7.0, kind=CHANGING))
    assert [(c.tool, c.kind, c.wall) for c in medians(costs)] == [
        ("ours", UNCHANGED, 2.0),
        ("floor", UNCHANGED, 9.0),
        ("ours", CHANGING, 7.0),
    ]


def test_ratios_are_to_ours_in_the_same_circumstances():
    costs = [cost("ours", 0.5), cost("pyinfra", 6.0, cpu=3.0), cost("pyinfra", 9.0, nodes=1)]
    assert ratios(costs) == {("pyinfra", 2, UNCHANGED): (12.0, 3.0)}


def test_promises_are_held_against_the_ratios():
    costs = [cost("ours", 0.5), cost("floor", 0.4), cost("pyinfra", 4.0), cost("ansible", 20.0)]
    seen = {figure.what: (figure.seen, figure.met) for figure in compared(costs)}
    assert seen == {
        "SSH sessions and turns a node": ("1 and 8", True),
        "unchanged: ours to a bare agent loop": ("1.25", True),
        "unchanged: pyinfra to ours": ("8.0", False),
        "unchanged: ansible to ours": ("40.0", True),
    }


@pytest.mark.parametrize("costs", [[], [cost("floor", 0.4)]], ids=["nothing", "without ours"])
def test_without_ours_there_is_nothing_to_hold(costs):
    assert compared(costs) == []


@pytest.mark.parametrize(("many", "met"), [(1.4, True), (1.6, False)])
def test_growth_with_the_nodes(many, met):
    (figure,) = scaled([cost("ours", 1, nodes=1, cpu=0.5), cost("ours", 9, nodes=32, cpu=many)])
    assert figure.met is met
