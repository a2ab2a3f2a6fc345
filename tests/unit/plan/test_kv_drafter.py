"""Drafters: their layers in the model's pool of KV cache, and the acceptance of their tokens."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import kv_figures
import pytest
from cases import each_row

from spark_cluster.errors import UsageError
from spark_cluster.models.lookup import find
from spark_cluster.models.naming import table
from spark_cluster.plan.acceptance import ENOUGH, KINDS, gained, kind_of, tokens_per_step
from spark_cluster.plan.acceptance import usual_acceptance as usual
from spark_cluster.plan.kv_layout import DrafterLayers, drafter_layers, is_mtp

QWEN = replace(find("nvidia/Qwen3.6-35B-A3B-NVFP4"), mtp_layers=1)
LLAMA = find("meta-llama/Llama-3.1-8B-Instruct")
DEEPSEEK = find("deepseek-ai/DeepSeek-V2-Lite")
GEMMA = find("google/gemma-4-31B-it")
MTP = {"method": "mtp", "num_speculative_tokens": 2}


def cache(geometry, **options):
    return kv_figures.cache(geometry, kv_gib=22, max_model_len=262_144, vllm="0.26.0", **options)


def test_an_mtp_layer_takes_its_share_of_the_pool():
    """vLLM logged 2,054,681 tokens for Qwen3.6 with MTP where 2,291,500 were predicted without its
    layer: 11 layers a block instead of 10, and the weights of that layer.
    """
    drafter = drafter_layers(QWEN, MTP, QWEN.name)
    (layers,) = drafter.attention
    assert (layers.kind, layers.layers) == ("full", 1)
    without = cache(QWEN, kv_dtype="fp8", drafted_tokens=2)
    counted = cache(QWEN, kv_dtype="fp8", drafted_tokens=2, drafter=drafter)
    assert counted.tokens / without.tokens == pytest.approx(10 / 11, rel=1e-3)
    assert 2_291_500 * counted.tokens / without.tokens == pytest.approx(2_054_681, rel=0.015)


@pytest.mark.parametrize("tp", [1, 2])
def test_of_a_dense_model(tp):
    drafter = drafter_layers(replace(LLAMA, mtp_layers=2), MTP, LLAMA.name)
    without = cache(LLAMA, tp=tp)
    counted = cache(LLAMA, tp=tp, drafter=drafter)
    assert counted.blocks == pytest.approx(without.blocks * 32 / 34, abs=1)
    assert counted.blocks_per_request == without.blocks_per_request


def test_of_latent_attention():
    drafter = drafter_layers(DEEPSEEK, MTP, DEEPSEEK.name)
    assert drafter.latent == 1
    expected = cache(DEEPSEEK).blocks * 27 / 28
    assert cache(DEEPSEEK, drafter=drafter).blocks == pytest.approx(expected, abs=1)


def test_a_drafter_of_its_own():
    small = replace(LLAMA, attention=(replace(LLAMA.attention[0], layers=4),))
    speculative = {"method": "eagle3", "model": "org/drafter", "num_speculative_tokens": 3}
    unknown = drafter_layers(LLAMA, speculative, LLAMA.name)
    assert unknown == DrafterLayers(known=False)
    drafter = drafter_layers(replace(LLAMA, drafter=small), speculative, LLAMA.name)
    assert drafter == DrafterLayers(small.attention)
    assert cache(LLAMA, drafter=drafter).blocks == pytest.approx(
        cache(LLAMA).blocks * 32 / 36, abs=1
    )


def test_a_drafter_with_other_heads_than_the_model():
    narrow = replace(LLAMA.attention[0], layers=2, kv_heads=2)
    counted = cache(LLAMA, drafter=DrafterLayers((narrow,)))
    assert cache(LLAMA).blocks * 32 / 34 <= counted.blocks < cache(LLAMA).blocks


@each_row(__file__, "kv_drafter.json", "drafters_without_a_cache_of_their_own")
def test_drafters_without_a_cache_of_their_own(speculative):
    assistant = find("google/gemma-4-31B-it-assistant")
    for shape in (GEMMA, replace(GEMMA, drafter=assistant)):
        assert drafter_layers(shape, speculative, GEMMA.name) == DrafterLayers()


@each_row(__file__, "kv_drafter.json", "which_draft_with_layers_of_the_model")
def test_which_draft_with_layers_of_the_model(speculative, expected):
    assert is_mtp(speculative, "org/model") is expected


# --- acceptance of drafted tokens: its definition, and what was published by kind of drafter -----


DATA = table("acceptance", "plan")


def test_tokens_of_a_step() -> None:
    assert tokens_per_step((0.91, 0.90, 0.89, 0.85), 4) == pytest.approx(4.08, abs=0.01)
    assert tokens_per_step([0.5], 3) == pytest.approx(1.875)
    for wrong in ((), (1.2,), (-0.1,), (float("nan"),)):
        with pytest.raises(UsageError, match="acceptance"):
            tokens_per_step(wrong, 2)
    with pytest.raises(UsageError, match="drafted"):
        tokens_per_step((0.5,), 0)


def test_what_was_measured_has_no_range() -> None:
    assert gained(4, [0.9], None) == (tokens_per_step([0.9], 4),) * 3
    assert gained(4, [], 0.5, "mtp") == (3.0, 3.0, 3.0)


def test_without_a_measurement_the_published_ones_of_the_kind_say_the_range() -> None:
    expected, least, most = gained(4, [], None, "mtp")
    for row in DATA["rows"]:
        if row["kind"] == "mtp" and row["drafted"] == 4:
            tokens = 1 + (sum(row["at"]) if "at" in row else 4 * row["share"])
            assert least - 0.01 <= tokens <= most + 0.01, row
    assert least < expected < most


def test_a_kind_of_which_little_is_published_varies_as_all_do() -> None:
    assert sum(row["kind"] == "dspark" for row in DATA["rows"]) < ENOUGH
    assert usual("dspark")[0] < usual("mtp")[0]
    assert usual("dspark")[1:] == usual("")[1:]
    assert usual("dspark")[1] <= usual("mtp")[1]


@pytest.mark.parametrize(
    ("method", "kind"),
    [("mtp", "mtp"), ("qwen3_next_mtp", "mtp"), ("dflash2", "dflash"), ("DSpark", "dspark")],
)
def test_kinds(method: str, kind: str) -> None:
    assert kind_of(method) == kind
    assert kind_of("ngram") == kind_of("") == ""


def test_every_row_has_a_source() -> None:
    runs = json.loads((Path(__file__).parents[3] / RUNS).read_text())["sources"]
    sources = {**runs, **DATA["sources"]}
    for row in DATA["rows"]:
        assert row["kind"] in KINDS
        assert row["source"] in sources, row
        assert len(row.get("at", ())) in (0, row["drafted"]), row
    assert all(source["link"].startswith("https://") for source in DATA["sources"].values())
    assert DATA["sources"].keys() <= {row["source"] for row in DATA["rows"]}


RUNS = "spark_cluster/plan/data/measurements.json"
