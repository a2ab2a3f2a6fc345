"""Our arithmetic of the KV cache against what real engines said, on CPUs and on GPUs.

`python -m benchmarks.kv_oracle` makes the answers of `kv_oracle.json` in the lab's environment, for
every family that vLLM starts on a CPU. `started` is what a started engine had; `more` is what
vLLM's own functions say of the layers that this engine built, for other sizes.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import kv_figures
import pytest
from gpu_runs import GpuRun, runs

from benchmarks.kv_oracle.older import COMPRESSED, DRAFTED, LONGEST, PACKED, SPARSE
from benchmarks.kv_oracle.questions import questions
from spark_cluster.config.launch import Launch
from spark_cluster.errors import UsageError
from spark_cluster.models.config import from_config
from spark_cluster.models.lookup import find
from spark_cluster.models.shape import Geometry
from spark_cluster.plan import kv
from spark_cluster.plan.fit import fit
from spark_cluster.plan.kv import GIB
from spark_cluster.plan.kv import cache as kv_cache
from spark_cluster.plan.kv_layout import KvLayout, drafter_layers
from spark_cluster.plan.kv_rules import NEWEST_READ, RULES, for_version
from spark_cluster.plan.room import assumed

CASES: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data" / "kv_oracle.json").read_text()
)


def options(case: dict[str, Any]) -> dict[str, Any]:
    """How that engine was started, in our words."""
    engine = case["engine"]
    return {
        "kv_dtype": engine.get("kv_cache_dtype", "auto"),
        "tp": engine.get("tensor_parallel_size", 1),
        "block_size": engine["block_size"],
        "prefix_caching": engine.get("enable_prefix_caching"),
        "vllm": case["answer"]["vllm"],
        "device": "cpu",
    }


def read(name: str) -> tuple[dict[str, Any], Geometry]:
    return CASES[name], from_config(CASES[name]["config"], name)


def test_every_question_has_its_answer() -> None:
    assert list(CASES) == [question.name for question in questions()]
    for question in questions():
        document = question.to_dict()
        assert {key: CASES[question.name][key] for key in document} == document


@pytest.mark.parametrize("name", CASES)
def test_a_started_engine(name: str) -> None:
    case, geometry = read(name)
    engine, said = case["engine"], case["answer"]["started"]
    found = kv_figures.cache(
        geometry,
        kv_bytes=engine["kv_cache_memory_bytes"],
        max_model_len=engine["max_model_len"],
        max_num_batched_tokens=engine["max_num_batched_tokens"],
        **options(case),
    )
    assert (found.tokens, found.max_concurrency) == (said["tokens"], said["max_concurrency"])
    unit = found.blocks // said["blocks"]
    assert found.blocks == unit * said["blocks"]
    assert unit == (2 if engine["block_size"] == 16 and any_sliding(geometry) else 1)
    blocks = [group["block_size"] for group in case["answer"]["groups"]]
    assert found.block_size == min(blocks)


def any_sliding(geometry: Geometry) -> bool:
    return any(part.kind == "sliding" for part in geometry.attention)


@pytest.mark.parametrize("name", CASES)
def test_other_sizes(name: str) -> None:
    case, geometry = read(name)
    assert len(case["answer"]["more"]) >= 2
    for said in case["answer"]["more"]:
        found = kv_figures.cache(
            geometry,
            kv_bytes=said["kv_bytes"],
            max_model_len=said["max_model_len"],
            max_num_batched_tokens=said["max_num_batched_tokens"],
            **options(case),
        )
        assert found.max_model_len == said["longest"], said
        if "refused" in said:
            assert found.max_model_len < said["max_model_len"]
        else:
            told = (said["tokens"], said["max_concurrency"])
            assert (found.tokens, found.max_concurrency) == told, said


# --- our rules against the functions of many versions of vLLM, run from their sources ------------


# Made by `python -m benchmarks.kv_oracle --sources FOLDER`: the layers are those of a GPU with
# blocks of 16 tokens; a row is what `benchmarks/kv_oracle/older.py` says it is.
SAID: dict[str, list[list[Any]]] = json.loads(
    (Path(__file__).parents[2] / "data" / "kv_versions.json").read_text()
)


FLASH = {
    "deepseek-v4-flash": "deepseek-ai/DeepSeek-V4-Flash",
    "deepseek-v4.1-flash": "deepseek-ai/DeepSeek-V4.1-Flash",
    "glm-5.3-flash": "zai-org/GLM-5.3-Flash",
    "qwen3.8-flash-next": "Qwen/Qwen3.8-Flash-Next",
    "minimax-m3": "MiniMaxAI/MiniMax-M3",
}
OF_TWO = COMPRESSED + SPARSE + PACKED


@pytest.fixture(scope="module")
def geometries() -> dict[str, Geometry]:
    small = {one.name: from_config(one.config, one.name) for one in questions()}
    return small | {name: find(FLASH[name.removesuffix("-mtp")]) for name in OF_TWO}


def packed(model: str, geometry: Geometry) -> dict[str, Any]:
    """How such a model was asked about: over two GPUs, with MTP or without."""
    if model not in OF_TWO:
        return {}
    if not model.endswith("-mtp"):
        return {"tp": 2}
    mtp = {"method": "mtp", "num_speculative_tokens": DRAFTED}
    drafter = drafter_layers(geometry, mtp, geometry.name)
    return {"tp": 2, "drafted_tokens": DRAFTED, "drafter": drafter}


def test_every_rule_was_asked() -> None:
    lab, default = "0.32.0", "0.28.0"  # the lab's own; a default, which these rows do not ask for
    packed = "0.21.0"  # a type of cache, neither
    assert {rule.since for rule in RULES} - {lab, default, packed} <= SAID.keys()
    assert NEWEST_READ in SAID


@pytest.mark.parametrize("version", SAID)
def test_a_version(version: str, geometries: dict[str, Geometry]) -> None:
    assert len(SAID[version]) > 100
    for row in SAID[version]:
        model, fp8, size, length, batch, flying, blocks, concurrency, block, longest = row
        if model in COMPRESSED and for_version(version)[0].compressed == "logged":
            continue
        found = kv_figures.cache(
            geometries[model],
            kv_bytes=size,
            max_model_len=length,
            max_num_batched_tokens=batch,
            kv_dtype="fp8" if fp8 else "bfloat16",
            vllm=version,
            async_scheduling=flying == 2,
            prefix_caching=True,
            gdn_prefill="triton",
            **packed(model, geometries[model]),
        )
        if blocks is None:
            assert found.max_model_len < length, row
        else:
            told = (found.blocks, found.max_concurrency, found.block_size)
            assert told == (blocks, concurrency, block), row
        assert min(found.max_model_len, LONGEST) == longest, row


# --- the KV cache arithmetic against what CUDA vLLM printed on H200s (`tests/gpu_runs.py`) -------


ROUNDING = 0.005
RUNS = {run.name: run for run in runs()}


def predicted(run: GpuRun, kv_gib: float, **options: str) -> kv.KvCache:
    return kv_figures.cache(
        run.geometry, kv_gib=kv_gib, max_model_len=run.max_model_len, **run.options, **options
    )


@pytest.mark.parametrize("name", RUNS)
def test_a_run_printed_what_is_predicted(name: str) -> None:
    """Exactly where the bytes are known; else within what the rounded GiB leaves open."""
    run = RUNS[name]
    if run.kv_exact:
        found = predicted(run, run.kv_gib)
        assert (found.tokens, round(found.max_concurrency, 2)) == (run.tokens, run.concurrency)
        return
    low, high = (predicted(run, run.kv_gib + sign * ROUNDING) for sign in (-1, 1))
    assert low.tokens <= run.tokens <= high.tokens
    assert round(low.max_concurrency, 2) <= run.concurrency <= round(high.max_concurrency, 2)


def test_prefix_caching_of_hybrids_is_on_from_0_28() -> None:
    """0.26.0, 0.27.0 and 0.27.1 keep it opt-in (`arg_utils.py`, default_prefix_caching)."""
    run = RUNS["0.26.0 q36-bf16-eager"]
    by_version = {
        version: predicted(GpuRun(**{**vars(run), "options": {**run.options, "vllm": version}}), 50)
        for version in ("0.25.0", "0.26.0", "0.27.1", "0.28.0")
    }
    states = {version: found.blocks_per_request for version, found in by_version.items()}
    assert states["0.25.0"] == states["0.26.0"] == states["0.27.1"] == states["0.28.0"] - 3


def test_gdn_prefill_by_flashinfer_keeps_a_checkpoint_from_0_33() -> None:
    """The same start with Triton's prefill logged blocks of 1056 tokens, with FlashInfer's 1088."""
    run = RUNS["0.33.0 q36-bf16-eager-gdndefault"]
    default, triton = predicted(run, 20), predicted(run, 20, gdn_prefill="triton")
    assert (default.block_size, triton.block_size) == (1088, 1056)
    assert (default.blocks_per_request, triton.blocks_per_request) == (70, 69)
    assert "FlashInfer" in default.rule
    assert "FlashInfer" not in triton.rule
    before = GpuRun(**{**vars(run), "options": {**run.options, "vllm": "0.32.0"}})
    assert predicted(before, 20).blocks_per_request == 69


def test_a_cpu_has_no_flashinfer() -> None:
    run = RUNS["0.33.0 q36-bf16-eager-gdndefault"]
    assert "FlashInfer" not in predicted(run, 20, device="cpu").rule


# --- caches that are counted as servers logged them, that are not known, or shared out by context


V4 = "deepseek-ai/DeepSeek-V4-Flash"
OLD = KvLayout(find(V4), tp=2, vllm="0.25.1")

LOGGED = [(10.58, 1_533_940), (18.08, 2_493_464), (19.85, 3_027_217), (12.16, 1_266_988)]
"""GiB and tokens that servers on two Sparks logged; kv_rules.toml says whose."""


@pytest.mark.parametrize(("gib", "tokens"), LOGGED)
def test_deepseek_v4_is_promised_no_more_tokens_than_any_server_had(gib, tokens):
    found = kv_cache(OLD, int(gib * GIB), 131_072)
    assert 0.6 * tokens < found.tokens <= tokens
    assert found.rule == "at most what servers logged for a token: 11,172 bytes"


def test_a_million_tokens_need_what_one_server_said() -> None:
    """10.91 GiB, with batches of 16,384 tokens."""
    for layout in (OLD, replace(OLD, vllm="0.33.0", kv_dtype="nvfp4_ds_mla")):
        found = kv_cache(layout, 20 * GIB, 1_048_576)
        assert found.gib_per_request == pytest.approx(10.91, abs=0.01)


def test_deepseek_v4_has_the_tokens_that_were_logged() -> None:
    """12.16 GiB and 1,266,988 tokens, on two Sparks with vLLM 0.27.1 and DSpark."""
    shape = find(V4)
    drafter = drafter_layers(shape, {"method": "dspark"}, V4)
    layout = replace(OLD, vllm="0.27.1", max_num_batched_tokens=8192, drafter=drafter)
    size = 13_023 * kv.pool(layout).block_bytes
    assert round(size / GIB, 2) == 12.16
    assert kv_cache(layout, size, 1_048_576).tokens == 1_266_988


def test_batches_take_more_of_such_a_cache_than_a_request() -> None:
    """What is not compressed yet is kept in float32, 4 or 8 tokens a block."""
    small, large = (replace(OLD, vllm="0.33.0", max_num_batched_tokens=n) for n in (1024, 8192))
    assert kv.pool(large).needed(262_144) > 3 * kv.pool(small).needed(262_144)


def launched(model: str, tp: int = 2, **flags: int) -> Launch:
    args = {"max-model-len": 8192, **{name.replace("_", "-"): n for name, n in flags.items()}}
    return Launch(model=model, args=args, tp=tp, nodes=tp)


def test_weights_too_large_need_no_rule_for_the_cache() -> None:
    name = "deepseek-ai/DeepSeek-V4.1-Flash"
    found = fit(launched(name), find(name), assumed(2))
    assert not found.fits
    assert found.reasons[0].startswith("spark1: the weights take 230.8 GiB")


def test_a_cache_alone_is_not_known_either() -> None:
    name = "thinkingmachines/Inkling-Small"
    with pytest.raises(UsageError, match=f"how vLLM lays out the KV cache of {name}"):
        kv_cache(KvLayout(find(name)), GIB, 8192)


# --- pooled index keys: what servers on two Sparks logged (docs/kv-cache.md has the addresses) ----


def logged(name: str, drafted: int = 0, **options: Any) -> KvLayout:
    """A layout over two Sparks with prefix caching, as logged by servers that draft with MTP."""
    shape = find(name)
    mtp = {"method": "mtp", "num_speculative_tokens": drafted}
    drafter = drafter_layers(shape, mtp if drafted else {}, shape.name)
    asked = {"tp": 2, "prefix_caching": True, "max_num_batched_tokens": 8192, **options}
    return KvLayout(shape, drafted_tokens=drafted, drafter=drafter, **asked)


GLM = {"vllm": "0.29.0", "kv_dtype": "fp8", "block_size": 2304}


def test_glm_5_3_flash_with_mtp_has_the_tokens_that_were_logged() -> None:
    found = kv_cache(logged("zai-org/GLM-5.3-Flash", 3, **GLM), 13_500_000_000, 1_048_576)
    assert found.block_size == 4608
    assert (found.tokens, round(found.max_concurrency, 2)) == (1_920_956, 1.83)


@pytest.mark.parametrize(("gib", "tokens"), [(3, 310_292), (4, 414_615)])
def test_a_drafter_of_unknown_layers_is_what_such_a_cache_lacks(gib: int, tokens: int) -> None:
    """With DFlash2 and 7 tokens: the layers of the drafter took 4 blocks of a request's 98."""
    layout = replace(logged("zai-org/GLM-5.3-Flash", **GLM), drafted_tokens=7)
    found = kv_cache(layout, gib * GIB, 262_144)
    assert found.blocks_per_request == 94
    assert int(found.blocks / 98 * 262_144) == tokens


@pytest.mark.parametrize(
    ("gib", "tokens", "options"),
    [
        (31.70, 2_131_159, {"drafted": 3, "vllm": "0.29.0"}),
        (32.02, 3_652_200, {"drafted": 3, "vllm": "0.29.0", "kv_dtype": "fp8"}),
        (None, 2_663_445, {"vllm": "0.29.0", "state_dtype": "bfloat16"}),
        (None, 1_467_072, {"drafted": 3, "vllm": "0.30.0", "state_dtype": "bfloat16"}),
    ],
)
def test_qwen_3_8_flash_next_has_the_tokens_that_were_logged(
    gib: float | None, tokens: int, options: dict[str, Any]
) -> None:
    """Of whole blocks; the GiB where they are told (the version of a build before 0.30 is not)."""
    layout = logged("Qwen/Qwen3.8-Flash-Next", **options)
    shared = kv.pool(layout)
    blocks = -(-tokens * shared.needed(262_144) // 262_144)
    size = blocks * shared.block_bytes
    assert kv_cache(layout, size, 262_144).tokens == tokens
    assert gib is None or size / GIB == pytest.approx(gib, abs=0.005)


def test_states_in_16_bits_make_shorter_blocks() -> None:
    whole, half = (
        logged("Qwen/Qwen3.8-Flash-Next", 3, vllm="0.30.0", state_dtype=name)
        for name in ("auto", "bfloat16")
    )
    assert (kv.pool(whole).smallest_block, kv.pool(half).smallest_block) == (1600, 832)


def test_a_checkpoint_of_the_prefill_in_every_recurrent_layer() -> None:
    """0.32 for delta attention by FlashKDA, 0.33 for a delta net by FlashInfer: the convolution
    over the table of n-grams keeps one too, and blocks are multiples of 64 tokens.
    """
    states = {
        "zai-org/GLM-5.3-Flash": ("0.31.0", "0.32.0", 4),
        "Qwen/Qwen3.8-Flash-Next": ("0.32.0", "0.33.0", 4),
    }
    for name, (before, after, groups) in states.items():
        old, new = (kv.pool(logged(name, vllm=version)) for version in (before, after))
        assert sum(part.fixed * n for part, n in new.kinds if part.kind == "state") == 3 * groups
        assert sum(part.fixed * n for part, n in old.kinds if part.kind == "state") == 2 * groups
    assert new.smallest_block % 64 == 0


def test_context_parallelism_shares_out_the_tokens_of_a_request() -> None:
    """`FullAttentionSpec.max_memory_usage_bytes`: the length is divided, then comes in blocks."""
    name = "zai-org/GLM-5.2"
    whole, shared = (kv_cache(KvLayout(find(name), tp=4, dcp=n), 8 * GIB, 65_536) for n in (1, 4))
    assert (whole.blocks_per_request, shared.blocks_per_request) == (4096, 1024)
    assert shared.tokens == pytest.approx(4 * whole.tokens, rel=0.001)
    flags = {"decode_context_parallel_size": 2}
    two = fit(launched("zai-org/GLM-4.7-Flash", **flags), find("zai-org/GLM-4.7-Flash"), assumed(2))
    one = fit(launched("zai-org/GLM-4.7-Flash"), find("zai-org/GLM-4.7-Flash"), assumed(2))
    assert two.cache.max_concurrency == pytest.approx(2 * one.cache.max_concurrency, rel=0.01)


def test_windows_are_not_shared_out() -> None:
    gemma = find("google/gemma-4-31B-it")
    one, two = (kv_cache(KvLayout(gemma, tp=2, dcp=n), 8 * GIB, 32_768) for n in (1, 2))
    assert one.blocks_per_request > two.blocks_per_request > one.blocks_per_request / 2


def test_layers_without_an_indexer_keep_no_index_keys() -> None:
    every = kv_cache(KvLayout(find("zai-org/GLM-5.1"), tp=4), 8 * GIB, 65_536)
    some = kv_cache(KvLayout(find("zai-org/GLM-5.2"), tp=4), 8 * GIB, 65_536)
    assert some.tokens > every.tokens


def test_a_model_whose_shape_is_known_and_whose_cache_is_not() -> None:
    name = "thinkingmachines/Inkling-Small-NVFP4"
    with pytest.raises(UsageError) as raised:
        fit(launched(name), find(name), assumed(2))
    assert "convolutions over keys and values, kept with the window" in str(raised.value)
    kinds = [(one.kind, one.layers) for one in find(name).attention]
    assert kinds == [("full", 7), ("sliding", 35)]
