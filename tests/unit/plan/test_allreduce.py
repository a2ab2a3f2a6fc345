"""All-reduces of more than two nodes: arithmetic, with a range that says so."""

from __future__ import annotations

from dataclasses import replace

import pytest

from spark_cluster.config.launch import of_recipe
from spark_cluster.config.project import Project
from spark_cluster.config.recipes import load_recipe
from spark_cluster.plan.estimate import Constants
from spark_cluster.plan.planner import PlannedLoad, Planner, of_a_recipe
from spark_cluster.plan.prefill import work
from spark_cluster.plan.room import assumed
from spark_cluster.plan.serving import ServingSetup
from spark_cluster.plan.speed import decode, speculative, step


@pytest.fixture(scope="module")
def plan():
    project = Project()
    recipe = load_recipe("gemma4-31b-fp8", project)
    subject = of_a_recipe(recipe, of_recipe(recipe, 4))
    return Planner(project).plan(subject, assumed(4), PlannedLoad())


@pytest.fixture
def serving(plan) -> ServingSetup:
    return plan.fit.serving


def at(serving: ServingSetup, tp: int) -> ServingSetup:
    return replace(serving, tp=tp)


def test_a_plan_over_four_nodes(plan) -> None:
    assert plan.feasible, plan.reasons
    assert plan.fit.launch.tp == 4
    assert "over a switch, for which nothing is published" in plan.speed.decode.basis


def test_more_exchanges_and_more_bytes(serving: ServingSetup) -> None:
    counts = [step(at(serving, tp), 1000).allreduces for tp in (1, 2, 4, 8)]
    two = serving.geometry.blocks + 2
    assert counts == [0, two, 2 * two, 3 * two]
    sent = [work(at(serving, tp), 2048).exchanged for tp in (1, 2, 4)]
    assert sent[0] == 0
    assert sent[2] == pytest.approx(1.5 * sent[1])


def test_the_range_of_four_reaches_from_one_quick_exchange_to_a_slow_ring(
    serving: ServingSetup,
) -> None:
    usual = Constants()
    two, four = (decode(at(serving, tp), 1000) for tp in (2, 4))
    assert four.request.low / four.request.expected < two.request.low / two.request.expected
    assert four.request.high / four.request.expected > two.request.high / two.request.expected
    each = serving.geometry.blocks + 2
    more = each * (3 * usual.allreduce_high_us - 2 * usual.allreduce_us) / 1e6
    assert four.request.low <= 1 / (1 / four.request.expected + more)
    drafted = speculative(at(serving, 4), 1000, 3)
    assert "over a switch" in drafted.basis


def test_a_link_that_was_measured_between_two_narrows_only_two(serving: ServingSetup) -> None:
    own = replace(Constants(), allreduce_us=50, allreduce_low_us=45, allreduce_high_us=60)
    two, four = (decode(at(serving, tp), 1000, constants=own).request for tp in (2, 4))
    assert two.low == pytest.approx(0.85 * two.expected)
    assert four.low < 0.85 * four.expected
