"""Stages of layers, replicas and several models on a node: what is planned, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import serve_plans
from factories import make_recipe

from spark_cluster.config.launch import of_recipe
from spark_cluster.config.project import Project
from spark_cluster.config.recipe import Recipe
from spark_cluster.errors import UsageError
from spark_cluster.importers.commandline import parse as parse_line
from spark_cluster.models.lookup import find
from spark_cluster.models.memory_share import OUTSIDE_GIB, RESERVE_GIB
from spark_cluster.plan import room
from spark_cluster.plan.plan import Plan
from spark_cluster.plan.planner import (
    Placed,
    PlannedLoad,
    Planner,
    PlanTogether,
    Subject,
    of_a_command,
    of_a_recipe,
    plan_together,
)
from spark_cluster.plan.room import assumed

LLAMA, QWEN = "meta-llama/Llama-3.3-70B-Instruct", "Qwen/Qwen3-8B"


def recipe_of(name: str = LLAMA, **changed: object) -> Recipe:
    return serve_plans.recipe_of(name, **{"engine_args": {"max-model-len": 8192}, **changed})


def plan_of(tmp_path: Path, recipe: Recipe, tp: int, nodes: int = 4) -> Plan:
    subject = of_a_recipe(recipe, of_recipe(recipe, tp))
    return Planner(Project(tmp_path)).plan(subject, assumed(nodes), PlannedLoad())


def test_stages_divide_weights_and_cache(tmp_path: Path) -> None:
    whole = plan_of(tmp_path, recipe_of(), 1)
    staged = plan_of(tmp_path, recipe_of(pipeline_parallel=2), 1)
    assert not whole.to_dict()["fits"], "131 GiB are more than one Spark has"
    assert staged.to_dict()["fits"]
    assert len(staged.fit.rooms) == 2
    half = whole.fit.weights_gib / 2
    assert half <= staged.fit.weights_gib < half + 2, "half of the layers, and one embedding"
    split = plan_of(tmp_path, recipe_of(), 2)
    each = staged.fit.cache.gib_per_request
    assert each == pytest.approx(split.fit.cache.gib_per_request, rel=0.01)
    assert staged.speed.decode.request.expected < split.speed.decode.request.expected
    assert any("2 pipeline stages" in remark for remark in staged.fit.remarks)


def test_stages_need_nodes(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, recipe_of(pipeline_parallel=3), 2, nodes=4)
    wanted = "tensor-parallel size 2 with 3 pipeline stages needs 6 nodes, one GPU each"
    assert wanted in plan.reasons


def test_more_stages_than_layers() -> None:
    with pytest.raises(UsageError, match="the 80 layers of"):
        room.largest_stage(find(LLAMA), 81)


def test_ranks_of_a_dense_model_hold_all_of_it(tmp_path: Path) -> None:
    one = plan_of(tmp_path, recipe_of(QWEN), 1)
    ranks = plan_of(tmp_path, recipe_of(QWEN, data_parallel=2), 1)
    assert ranks.feasible
    assert (len(one.fit.rooms), len(ranks.fit.rooms)) == (1, 2)
    assert ranks.fit.weights_gib == one.fit.weights_gib
    assert ranks.fit.kv_gib == one.fit.kv_gib
    alone, several = (plan.speed.decode.request for plan in (one, ranks))
    assert several.low < alone.low
    assert several.expected == alone.expected
    said = next(remark for remark in ranks.fit.remarks if "data-parallel" in remark)
    assert "not measured on Sparks" in said
    assert "`up --replicas` does without Ray" in said


@pytest.mark.parametrize("whole", [True, False])
def test_ranks_divide_the_experts(tmp_path: Path, whole: bool) -> None:
    model = "openai/gpt-oss-20b"
    flags = {"max-model-len": 8192, **({"enable-expert-parallel": True} if whole else {})}
    one = plan_of(tmp_path, recipe_of(model), 1)
    ranks = plan_of(tmp_path, recipe_of(model, data_parallel=2, engine_args=flags), 1)
    assert one.fit.weights_gib / 2 < ranks.fit.weights_gib < 0.7 * one.fit.weights_gib
    assert ranks.to_dict()["disk_gib"] == one.to_dict()["disk_gib"], "every node has all files"
    said = next(remark for remark in ranks.fit.remarks if "data-parallel" in remark)
    assert ("whole ones, --enable-expert-parallel" in said) is whole


def test_ranks_that_cannot_be_joined_are_said(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, recipe_of(data_parallel=2, executor="mp"), 2)
    assert not plan.feasible
    why = "data_parallel: 2: Ray joins its ranks, and the executor is mp"
    assert plan.obstacles == (why,)


def test_of_a_command(tmp_path: Path) -> None:
    subject = of_a_command(parse_line(f"vllm serve {LLAMA} -tp 1 -pp 2 --max-model-len 8192"), None)
    assert (subject.launch.tp, subject.launch.pp, subject.launch.nodes) == (1, 2, 2)
    plan = Planner(Project(tmp_path)).plan(subject, assumed(4), PlannedLoad())
    assert plan.to_dict()["pipeline_parallel"] == 2
    assert len(plan.fit.rooms) == 2


def test_what_was_not_carried_over_is_said(tmp_path: Path) -> None:
    lacking = [
        {"what": "mod a", "why": "a script", "consequence": "it may fail"},
        {"what": "--b", "why": "of a mod", "consequence": "it does not start", "blocks": True},
    ]
    plan = plan_of(tmp_path, recipe_of(QWEN, not_carried_over=lacking), 1)
    assert plan.to_dict()["fits"]
    assert not plan.feasible
    assert plan.obstacles == ("not carried over: --b (of a mod); it does not start",)
    assert "not carried over: mod a (a script); it may fail" in plan.fit.remarks
    assert len(plan.to_dict()["not_carried_over"]) == 2


def test_nearest_has_smaller_builds_and_fewer_nodes(tmp_path: Path) -> None:
    line = parse_line("vllm serve google/gemma-4-31B-it --gpu-memory-utilization 0.95")
    plan = Planner(Project(tmp_path)).plan(of_a_command(line, None), assumed(2), PlannedLoad())
    changes = {near.change for near in plan.nearest}
    assert "recipe gemma4-31b-nvfp4" in changes
    line = parse_line("vllm serve Qwen/Qwen3-8B -tp 4 --max-model-len 8192")
    plan = Planner(Project(tmp_path)).plan(of_a_command(line, None), assumed(2), PlannedLoad())
    assert "--tp 2" in {near.change for near in plan.nearest}


def test_every_offer_is_planned(tmp_path: Path) -> None:
    planner = Planner(Project(tmp_path))
    line = parse_line(f"vllm serve {LLAMA}")
    plan = planner.plan(of_a_command(line, None), assumed(2), PlannedLoad())
    assert plan.nearest
    for near in plan.nearest:
        assert near.launch is not None
        assert planner.fit(Subject(near.change, near.launch), assumed(2)).fits, near.change


def test_a_size_that_is_not_known_offers_one_that_is(tmp_path: Path) -> None:
    alone = recipe_of(QWEN, tensor_parallel={"min": 1, "max": 1})
    plan = plan_of(tmp_path, alone, 2)
    assert plan.reasons == ("r is known to run with --tp 1 only, not 2",)
    assert [near.change for near in plan.nearest] == ["--tp 1"]
    several = recipe_of(QWEN, tensor_parallel={"min": 2, "max": 64, "default": 2})
    plan = plan_of(tmp_path, several, 1)
    assert plan.reasons == ("r is known to run with --tp 2 or more only, not 1",)


# --- several models on one node: the share of each, the sum, and a refusal with its figures ------


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
    assert reason.startswith("spark1: 2 models need 84.6 GiB together (57.2 for gemma4-31b-fp8")
    assert reason.endswith("60.0 are available")
    assert found.to_dict()["nodes"][0]["left_gib"] == pytest.approx(-20.56)


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
