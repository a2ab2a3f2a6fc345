"""Parameters and bytes of models, against what is known of them and what H200s loaded."""

from dataclasses import replace

import pytest
from cases import each_row
from factories import log_of
from gpu_runs import GpuRun, runs
from hypothesis import given
from hypothesis import strategies as st
from speed_samples import DEEPSEEK_LITE, EVERY, GEMMA_26B, GEMMA_31B, LLAMA_70B, MODELS

from spark_cluster.errors import UsageError
from spark_cluster.issues.explain import explain
from spark_cluster.models.lookup import find
from spark_cluster.models.shape import MATRICES
from spark_cluster.models.weights import (
    BYTES,
    formats,
    load_peak_bytes,
    memory_bytes,
    must_be_known,
    parameters,
    weights_of,
)

GIB = 1 << 30
models = st.sampled_from(EVERY)
quantizations = st.sampled_from(sorted(BYTES))


@each_row(__file__, "weights.toml", "memory")
def test_memory(model, quantization, low, high):
    """GB."""
    assert low <= memory_bytes(MODELS[model], quantization) / 1e9 <= high


@each_row(__file__, "weights.toml", "weights_are_as_a_server_logged_them")
def test_weights_are_as_a_server_logged_them(name, quantization, nodes, gib):
    """Of Nemotron 247 GiB would follow from its own width instead of its experts'."""
    found = memory_bytes(find(name), quantization) / nodes / GIB
    assert found == pytest.approx(gib, rel=0.03)


def test_online_quantization_needs_the_unquantized_weights_first():
    assert memory_bytes(GEMMA_31B, "fp8-online") == memory_bytes(GEMMA_31B, "fp8")
    assert load_peak_bytes(GEMMA_31B, "fp8-online") == memory_bytes(GEMMA_31B, "bf16")
    assert load_peak_bytes(GEMMA_31B, "fp8-online") / GIB == pytest.approx(58.2, rel=0.01)
    assert load_peak_bytes(GEMMA_31B, "nvfp4") == memory_bytes(GEMMA_31B, "nvfp4")


def test_what_builds_leave_as_it_is():
    assert formats(GEMMA_31B, "nvfp4")["attention"] == "bf16"
    assert formats(GEMMA_31B, "nvfp4")["mlp"] == "nvfp4"
    red_hat = replace(GEMMA_31B, name="RedHatAI/gemma-4-31B-it-NVFP4")
    assert formats(red_hat, "nvfp4")["attention"] == "nvfp4"
    assert set(formats(GEMMA_26B, "nvfp4").values()) - {"bf16"} == {"nvfp4"}
    gpt_oss = formats(find("openai/gpt-oss-120b"), "mxfp4")
    assert {part for part in gpt_oss if gpt_oss[part] == "mxfp4"} == {"experts"}
    qwen = formats(find("Qwen/Qwen3.6-35B-A3B"), "nvfp4")
    assert (qwen["experts"], qwen["attention"], qwen["recurrent"]) == ("nvfp4", "fp8", "bf16")
    nvidia = formats(replace(GEMMA_26B, name="nvidia/Gemma-4-26B-A4B-NVFP4"), "nvfp4")
    assert [nvidia[part] for part in ("attention", "mlp", "experts")] == ["bf16", "bf16", "nvfp4"]
    autoround = formats(find("Qwen/Qwen3-Next-80B-A3B-Instruct"), "gptq-int4")
    assert (autoround["recurrent"], autoround["shared"]) == ("gptq-int4", "bf16")


@each_row(__file__, "weights.toml", "builds_of_a_maker")
def test_builds_of_a_maker(shape, maker, kept, gb):
    """What stays in another format than NVFP4, and the size that the maker or a log says."""
    build = replace(find(shape), name=f"{maker}/a-build")
    found = formats(build, "nvfp4")
    parts = ("attention", "recurrent", "shared", "output")
    named = {part: found[part] for part in parts if found.get(part, "nvfp4") != "nvfp4"}
    assert {
        part: form for part, form in named.items() if part != "output" or form != "bf16"
    } == kept
    assert memory_bytes(build, "nvfp4") / 1e9 == pytest.approx(gb, rel=0.06)


def test_experts_of_deepseek_v4_have_four_bits_and_the_rest_eight():
    """155 GB on the hub, of 284 billion parameters."""
    found = find("deepseek-ai/DeepSeek-V4-Flash-0731")
    assert found.quantization == "mxfp4"
    parts = formats(found, "mxfp4")
    assert (parts["experts"], parts["attention"], parts["shared"]) == ("mxfp4", "fp8", "fp8")
    assert memory_bytes(found, "mxfp4") == pytest.approx(155e9, rel=0.03)
    assert find("nvidia/DeepSeek-V4-Flash-NVFP4").quantization == "nvfp4"


def test_a_gate_of_attention_is_counted():
    plain = find("Qwen/Qwen3.6-35B-A3B")
    assert plain.attention[0].gated
    less = replace(plain, attention=(replace(plain.attention[0], gated=False),))
    gate = 10 * 16 * 256 * 2048
    assert parameters(plain)["attention"] - parameters(less)["attention"] == gate


def test_a_layer_that_borrows_its_cache_has_no_keys_of_its_own():
    sliding, full = GEMMA_31B.attention
    borrowing = replace(GEMMA_31B, attention=(replace(sliding, borrowed=10), full))
    less = parameters(GEMMA_31B)["attention"] - parameters(borrowing)["attention"]
    assert less == 10 * 5376 * 16 * (256 + 256)


def test_a_step_reads_the_output_layer_once_and_no_vision():
    gemma, llama = weights_of(GEMMA_31B, "bf16"), weights_of(LLAMA_70B, "fp8")
    assert gemma.step_bytes() == gemma.memory_bytes() - gemma.part("other").bytes
    assert llama.step_bytes() == llama.memory_bytes() - llama.part("embedding").bytes


@given(models, quantizations, st.integers(1, 4096), st.integers(1, 4096))
def test_reading(model, quantization, few, more):
    few, more = sorted((few, more))
    one, many = (weights_of(model, quantization).step_bytes(n) for n in (few, more))
    assert 0 < one <= many * (1 + 1e-12)
    assert many <= memory_bytes(model, quantization) * (1 + 1e-12)
    if not model.is_moe:
        assert one == many


@given(models, quantizations)
def test_quantization_never_makes_it_larger(model, quantization):
    assert memory_bytes(model, quantization) <= memory_bytes(model, "bf16")
    assert load_peak_bytes(model, quantization) >= memory_bytes(model, quantization)
    assert set(formats(model, quantization)) == set(MATRICES)


def test_latent_attention():
    """DeepSeek-V2-Lite, by hand: queries, compressed keys and values, their expansion, output."""
    layer = 2048 * 16 * 192 + 2048 * 576 + 512 * 16 * 256 + 16 * 128 * 2048
    assert parameters(DEEPSEEK_LITE)["attention"] == 27 * layer


def test_unknown_quantization():
    assert must_be_known("NVFP4") == "nvfp4"
    with pytest.raises(UsageError, match="no quantization 'nvfp5'") as caught:
        must_be_known("nvfp5")
    assert "nvfp4" in caught.value.hint


# --- the size of loaded weights against "Model loading took" on H200s (`tests/gpu_runs.py`) ------


RUNS = {run.name: run for run in runs() if run.lines and run.geometry.name != "paris"}


def predicted(run: GpuRun) -> float:
    whole = memory_bytes(run.geometry, must_be_known(run.quantization))
    return (whole / run.tp + run.geometry.tables_bytes) / GIB


@pytest.mark.parametrize("name", RUNS)
def test_what_was_loaded_is_predicted_within_one_percent(name):
    """What is left is memory that PyTorch rounds up to 2 MiB a matrix, norms and biases."""
    run = RUNS[name]
    facts = explain([log_of(run.log, "engine.log")]).facts
    loaded = float(facts["weights"].removesuffix(" GiB"))
    assert 0 <= loaded / predicted(run) - 1 < 0.01


def test_the_tables_of_positions_of_gemma_4():
    """262,144 positions, 512 numbers for full layers and 256 for sliding ones, 2 bytes each."""
    assert find("google/gemma-4-31B-it").tables_bytes == 384 * 1024**2


def test_keys_that_are_the_values_too_are_loaded_twice():
    """Gemma 4 31B: 10 full layers, 4 heads of 512, hidden size 5376."""
    model = find("google/gemma-4-31B-it")
    copied = 10 * 4 * 512 * 5376
    for quantization, size in (("bf16", 2), ("fp8", 1)):
        part = weights_of(model, must_be_known(quantization)).part("attention")
        assert part.bytes == (part.parameters + copied) * size
