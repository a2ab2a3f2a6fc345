"""What a step and a prefill cost: blocks, formats of builds, chunks of a prompt, all-reduces."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cases import each_row

from spark_cluster.config.launch import Launch, of_recipe
from spark_cluster.config.project import Project
from spark_cluster.config.recipes import load_recipe
from spark_cluster.models.config import MIXED
from spark_cluster.models.lookup import find
from spark_cluster.models.naming import table
from spark_cluster.plan.estimate import Constants
from spark_cluster.plan.planner import PlannedLoad, Planner, of_a_recipe
from spark_cluster.plan.prefill import prefill, work
from spark_cluster.plan.room import assumed
from spark_cluster.plan.serving import ServingSetup, draft_read, of_launch, weights_read
from spark_cluster.plan.speed import decode, drafting_seconds, speculative, step

QWEN = find("nvidia/Qwen3.6-35B-A3B-NVFP4")
MINIMAX = find("MiniMaxAI/MiniMax-M2.5")
GPT = find("openai/gpt-oss-120b")


@each_row(__file__, "speed_physics.toml", "nodes_add_up_once_for_each_residual_block")
def test_nodes_add_up_once_for_each_residual_block(name: str, blocks: int) -> None:
    """A layer of Nemotron H is a mixer or a feed-forward, one of the others is both."""
    geometry = find(name)
    assert geometry.blocks == blocks
    assert step(ServingSetup(geometry, "bf16", tp=2), 100).allreduces == blocks + 2


def test_nvidias_build_of_qwen_has_the_size_of_its_repository() -> None:
    """23.4 GB on the hub, with 1.7 GB of MTP layers in BF16; multiplied in 16 bits."""
    serving = ServingSetup(QWEN, "nvfp4")
    parts = serving.weights
    assert parts.part("output").format == "nvfp4"
    assert (parts.part("attention").format, parts.part("recurrent").format) == ("fp8", "fp8")
    assert parts.memory_bytes() == pytest.approx(23.4e9 - 1.7e9, rel=0.01)
    assert serving.unpacks("nvfp4")
    assert not serving.unpacks("fp8")
    read = weights_read(serving)
    assert read.experts_4bit > 0 == read.experts_fp4


def test_experts_in_nvfp4_have_a_pace_of_their_own() -> None:
    native = ServingSetup(MINIMAX, "nvfp4")
    assert native.weights.part("attention").format == "bf16"
    assert weights_read(native).experts_fp4 > 0
    marlin = replace(native, unpacked=True)
    assert weights_read(marlin).experts_fp4 == 0
    assert weights_read(marlin).total == pytest.approx(weights_read(native).total)
    constants = Constants()
    assert step(native, 100).seconds(constants) > step(marlin, 100).seconds(constants)
    whole = (replace(one, batched_tokens=16_384) for one in (native, marlin))
    prefills = [work(one, 16_384).seconds(constants) for one in whole]
    assert prefills[0] < prefills[1]


def test_experts_in_mxfp4_are_multiplied_as_such_only_by_images_that_say_so() -> None:
    stock = ServingSetup(GPT, "mxfp4")
    image = replace(stock, mxfp4_layers=("moe", "qkv", "o", "lm_head"))
    assert (work(stock, 100).experts_fp4, work(image, 100).experts) == (0, 0)
    assert work(image, 100).experts_fp4 == work(stock, 100).experts


def test_the_last_chunk_of_a_prompt_reads_what_its_own_tokens_choose() -> None:
    serving = ServingSetup(QWEN, "bf16", batched_tokens=2048)
    two, more, three = (work(serving, tokens).read for tokens in (4096, 4097, 6144))
    assert two < more < two + 0.1 * (three - two)


def test_reading_experts_is_hidden_behind_computing_where_a_chunk_is_large() -> None:
    constants = Constants()
    small, large = (
        work(ServingSetup(QWEN, "bf16", batched_tokens=chunk), 16_384) for chunk in (1024, 16_384)
    )
    assert small.reads_experts(constants)
    assert not large.reads_experts(constants)
    assert large.seconds(constants) < small.seconds(constants)


KNOWN = [entry["name"] for entry in table("shapes")["models"]]


@pytest.mark.parametrize("name", [name for name in KNOWN if find(name).quantization != MIXED])
def test_every_known_model_has_a_speed_on_one_and_two_nodes(name: str) -> None:
    for tp in (1, 2):
        served = of_launch(Launch(model=name, tp=tp), find(name))
        for found in (decode(served, 1024, 1).request, prefill(served, 2048).seconds):
            assert 0 < found.low < found.high


def test_recurrent_layers_scan_and_experts_copy_their_tokens() -> None:
    assert work(ServingSetup(QWEN, "bf16"), 1000).scan == 11 * 30 * 524_288 * 1000
    assert work(ServingSetup(MINIMAX, "bf16"), 1000).scan == 0
    copied = 62 * 8 * (2 * 3072 + 3 * 1536)
    assert work(ServingSetup(MINIMAX, "bf16"), 1000).routed == 4 * copied * 1000


def test_builds_in_4_bits_draft_in_16() -> None:
    build = ServingSetup(QWEN, "nvfp4", own_head=True)
    plain = ServingSetup(replace(QWEN, name="Qwen/Qwen3.6-35B-A3B"), "bf16", own_head=True)
    output = plain.weights.part("output").bytes - build.weights.part("output").bytes
    fp8 = build.weights.part("attention").bytes / 10  # of its 40 layers 10 have full attention
    assert draft_read(plain) - draft_read(build) == pytest.approx(output + fp8)
    faster = speculative(build, 500, 2, method="mtp").request.expected
    assert faster > speculative(build, 500, 2, method="dspark").request.expected


def test_some_drafters_draft_all_tokens_of_a_step_in_one_pass() -> None:
    """And have no output layer of their own; 15 tokens of Laguna took 20 ms more than 6."""
    drafter = {"model": "z-lab/a-drafter", "num_speculative_tokens": 8}
    shape = find("Qwen/Qwen3.8-27B")
    each, once = (
        of_launch(
            Launch(shape.name, quantization="fp8", args={"speculative-config": config}), shape
        )
        for config in ({**drafter, "method": "eagle3"}, {**drafter, "method": "dflash"})
    )
    assert draft_read(each) == 0 < draft_read(once) == once.weights.part("output").bytes
    pass_s = draft_read(once) / (Constants().bandwidth * Constants().eta_dense)
    steps = [drafting_seconds(one, 500, 8, 1, Constants()) for one in (each, once)]
    assert steps[0] - steps[1] == pytest.approx(7 * Constants().draft_ms / 1e3 - pass_s)


def test_a_prefill_of_mla_pads_values_and_unpacks_what_is_cached_for_every_chunk() -> None:
    lite = ServingSetup(find("deepseek-ai/DeepSeek-V2-Lite"), "bf16")
    width, unpacked = 2 * (128 + 64), 512 * (128 + 128) / 2048
    assert work(lite, 1000).flash == pytest.approx(27 * 16 * (width + unpacked) * 1000**2)
    larger = replace(lite, batched_tokens=8192)
    assert work(larger, 1000).flash < work(lite, 1000).flash


def test_4_bits_that_are_unpacked_are_read_like_others() -> None:
    build = ServingSetup(find("meta-llama/Llama-3.3-70B-Instruct"), "nvfp4")
    marlin = weights_read(replace(build, unpacked=True))
    assert (marlin.dense_fp4, weights_read(build).dense_fp4 > 0) == (0, True)
    assert marlin.total == weights_read(build).total


# --- all-reduces of more than two nodes: arithmetic, with a range that says so -------------------


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


def test_the_range_of_four_reaches_from_one_quick_exchange_to_a_slow_ring(serving):
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
