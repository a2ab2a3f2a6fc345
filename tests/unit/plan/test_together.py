"""Several models on one node: the share of each, the sum, and a refusal with its figures."""

from __future__ import annotations

import pytest
from factories import make_recipe

from spark_cluster.config.launch import of_recipe
from spark_cluster.config.project import Project
from spark_cluster.models.memory_share import OUTSIDE_GIB, RESERVE_GIB
from spark_cluster.plan.planner import (
    Placed,
    Planner,
    PlanTogether,
    Subject,
    of_a_recipe,
    plan_together,
)
from spark_cluster.plan.room import assumed

CHAT, EMBEDDING = "gemma4-26b-a4b-nvfp4", "qwen3-embedding-0.6b"


@pytest.fixture(scope="module")
def planner() -> Planner:
    return Planner(Project())


def subject(name: str) -> Subject:
    recipe = make_recipe(name)
    return of_a_recipe(recipe, of_recipe(recipe, 1))


def planned(planner: Planner, *names: str, gib: float | None = None) -> PlanTogether:
    room = assumed(1, gib)[0]
    return plan_together(planner, [Placed(subject(name), room) for name in names])


def test_the_sum_of_all_leaves_what_the_system_keeps(planner: Planner) -> None:
    found = planned(planner, CHAT, EMBEDDING)
    chat, embedding = (plan.fit for plan in found.plans)
    assert found.feasible
    assert embedding.share == 0.10, "its recipe's own"
    assert chat.share is not None
    alone = planner.fit(subject(CHAT), assumed(1))
    assert alone.share is not None
    assert chat.share < alone.share, "what the other one takes is left for it"
    total, available = assumed(1)[0].total_gib, assumed(1)[0].available_gib
    left = available - (chat.share + embedding.share) * total - 2 * OUTSIDE_GIB
    assert RESERVE_GIB <= left < RESERVE_GIB + total / 100, "no more than a hundredth is wasted"
    assert found.nodes[0].left_gib == pytest.approx(left)


def test_the_first_without_a_number_of_requests_takes_what_is_left(planner: Planner) -> None:
    found = planned(planner, CHAT, CHAT)
    first, second = (plan.fit for plan in found.plans)
    assert found.feasible
    assert second.share == second.needed, "the KV cache of one request"
    assert (first.share or 0) > first.needed


def test_too_much_is_refused_with_the_figures_of_each(planner: Planner) -> None:
    found = planned(planner, "gemma4-31b-fp8", EMBEDDING, gib=60)
    assert not found.feasible
    (reason,) = found.reasons
    assert reason.startswith("spark1: 2 models need 82.1 GiB together (54.8 for gemma4-31b-fp8")
    assert reason.endswith("60.0 are available")
    assert found.to_dict()["nodes"][0]["left_gib"] == pytest.approx(-18.13)


def test_models_on_nodes_of_their_own_leave_each_other_alone(planner: Planner) -> None:
    subjects = [subject(CHAT), subject(EMBEDDING)]
    placed = [Placed(*pair) for pair in zip(subjects, assumed(2), strict=True)]
    found = plan_together(planner, placed)
    assert [node.room.name for node in found.nodes] == ["spark1", "spark2"]
    assert found.plans[0].fit.share == planner.fit(subjects[0], assumed(1)).share


def test_a_cache_of_a_given_size_is_taken_as_it_is(planner: Planner) -> None:
    found = planned(planner, "lab-paris", CHAT)
    assert found.plans[0].fit.share is None
    assert found.nodes[0].left_gib >= RESERVE_GIB
