"""Bytes of models counted from their tensors, against what is published of them."""

from dataclasses import replace
from typing import Any

import checkpoints
import pytest
from cases import each_case, each_row
from checkpoints import LLAMA_70B, NEMOTRON_SUPER

from spark_cluster.models.checkpoint import count, part_of
from spark_cluster.models.config import bits, from_config
from spark_cluster.models.naming import table
from spark_cluster.models.shape import Geometry, StoredWeights
from spark_cluster.models.weights import load_peak_bytes, memory_bytes, weights_of

GIB = 1 << 30
GB = 1e9


def listed(name: str) -> dict[str, Any]:
    return next(e["config"] for e in table("shapes")["models"] if e["name"] == name)


def counted(
    config: dict[str, Any], tensors: list[Any], declared: dict[str, Any] | None = None
) -> tuple[Geometry, StoredWeights]:
    declares = {"quantization_config": declared} if declared else {}
    shape = from_config({**config, **declares}, "org/model")
    found = count(tensors, shape, {**config, **declares})
    return replace(shape, stored=found), found


@each_row(__file__, "counting.toml", "a_dense_model_in_every_style")
def test_a_dense_model_in_every_style(style, label, gigabytes):
    declared = {"awq": {"quant_method": "awq"}}.get(style)
    shape, found = counted(LLAMA_70B, checkpoints.dense(LLAMA_70B, style), declared)
    assert found.quantization == label
    assert (found.part("mlp").format == "int8") is (style == "int8-channel")
    assert found.memory_bytes() / GB == pytest.approx(gigabytes, rel=0.003)
    assert sum(part.parameters for part in found.parts) / GB == pytest.approx(70.554, rel=1e-3)
    embedding = 2 * 128256 * 8192
    assert found.step_bytes() == found.memory_bytes() - embedding
    assert found.memory_bytes(2) == pytest.approx(found.memory_bytes() / 2, rel=1e-3)
    # and this is what plans use
    assert memory_bytes(shape, label) == found.memory_bytes()  # type: ignore[arg-type]
    assert weights_of(shape, label).step_bytes() == found.step_bytes()  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("packing", "style", "label"),
    [("auto_round:auto_gptq", "gptq", "gptq-int4"), ("auto_round:auto_awq", "awq", "awq-int4")],
)
def test_autoround_is_not_planned_as_bf16(packing, style, label):
    declared = {"quant_method": "auto-round", "bits": 4, "packing_format": packing}
    shape, found = counted(LLAMA_70B, checkpoints.dense(LLAMA_70B, style), declared)
    assert (shape.quantization, found.quantization) == (label, label)
    assert memory_bytes(shape, found.quantization) < 41 * GB  # type: ignore[arg-type]


def test_parts_that_were_left_unquantised():
    """As NVIDIA's Gemma 4 31B: only the feed-forward layers are NVFP4."""
    config = {**LLAMA_70B, "tie_word_embeddings": True}
    plain = [t for t in checkpoints.dense(config, "bf16") if ".mlp." not in t.name]
    packed = [t for t in checkpoints.dense(config, "nvfp4-modelopt") if ".mlp." in t.name]
    _, found = counted(config, plain + packed)
    assert found.quantization == "nvfp4"
    assert (found.part("attention").format, found.part("mlp").format) == ("bf16", "nvfp4")
    assert found.part("attention").bytes == 2 * found.part("attention").parameters
    assert found.part("mlp").bytes == pytest.approx(0.5625 * found.part("mlp").parameters, rel=1e-3)
    assert found.part("output").bytes == 0
    assert found.step_bytes() == found.memory_bytes()  # the embedding is the output layer


def test_gpt_oss():
    config = listed("openai/gpt-oss-120b")
    shape, found = counted(config, checkpoints.gpt_oss(config))
    assert found.quantization == "mxfp4"
    assert found.memory_bytes() / GB == pytest.approx(65.25, rel=1e-3)  # its index: 65.2 GB
    assert sum(part.parameters for part in found.parts) / GB == pytest.approx(116.8, rel=1e-3)
    computed = weights_of(replace(shape, stored=None), "mxfp4")
    for tokens in (1, 8):
        assert found.step_bytes(tokens) == pytest.approx(computed.step_bytes(tokens), rel=0.005)


def test_nemotron_super():
    """74.8 GiB on the hub; a server's log, without the MTP layer, says 69.62 GiB, which has what
    the kernels pad too. Without the latent size it would be 247 GiB.
    """
    shape, found = counted(NEMOTRON_SUPER, checkpoints.nemotron_super(NEMOTRON_SUPER))
    assert found.quantization == "nvfp4"
    assert found.memory_bytes() / GIB == pytest.approx(69.62, rel=0.03)
    assert found.memory_bytes(drafter=True) / GIB == pytest.approx(74.8, rel=0.03)
    read = found.step_bytes() / GB
    assert 11 < read < 13
    assert found.part("mlp").whole == found.part("mlp").bytes  # the latent projections
    assert found.step_bytes(1, 2) > found.step_bytes(1, 1) / 2
    unpacked = weights_of(replace(shape, stored=None), "nvfp4")
    assert unpacked.memory_bytes() / GIB == pytest.approx(69.62, rel=0.08)


def test_what_is_stored_with_32_bits_is_loaded_with_16():
    config = {**LLAMA_70B, "num_hidden_layers": 2}
    wide = [replace(t, dtype="F32", size=2 * t.size) for t in checkpoints.dense(config, "bf16")]
    _, found = counted(config, wide)
    _, narrow = counted(config, checkpoints.dense(config, "bf16"))
    assert found.part("mlp").bytes == narrow.part("mlp").bytes
    assert found.memory_bytes() == pytest.approx(narrow.memory_bytes(), rel=1e-3)


def test_fp8_made_of_a_bf16_checkpoint_while_loading():
    """vLLM quantizes the linear layers and the experts; embedding, output layer, routers, norms
    and towers stay (vllm/model_executor/layers/quantization/fp8.py).
    """
    config = {**LLAMA_70B, "num_hidden_layers": 2}
    tower = checkpoints.tensor("vision_tower.blocks.0.mlp.fc1.weight", "BF16", 1000, 1000)
    shape, found = counted(config, [*checkpoints.dense(config, "bf16"), tower])
    online = weights_of(shape, "fp8-online")
    assert online.counted
    assert online.part("mlp").bytes == found.part("mlp").bytes / 2
    assert online.part("attention").format == "fp8"
    for name in ("embedding", "output", "norms", "other"):
        assert online.part(name) == found.part(name)  # type: ignore[arg-type]
    assert load_peak_bytes(shape, "fp8-online") == found.memory_bytes()


def test_of_a_build_in_another_format_the_tensors_say_nothing():
    shape, found = counted(LLAMA_70B, checkpoints.dense(LLAMA_70B, "bf16"))
    assert not weights_of(shape, "nvfp4").counted
    assert weights_of(shape, "nvfp4").memory_bytes() < found.memory_bytes() / 3


@each_row(__file__, "counting.toml", "bits_of_packed_weights")
def test_bits_of_packed_weights(declared, expected):
    assert bits({"quantization_config": {"quant_method": "x", **declared}}) == expected


@each_case(__file__, "tensor_parts.toml")
def test_a_tensors_name_says_its_part(case, request):
    found = {name: part_of(name, 61) for name in case}
    assert found == dict.fromkeys(case, request.node.callspec.id)


def test_mtp_layers_weigh_only_where_they_draft_and_their_copies_never():
    """As DeepSeek and GLM store them: a layer after the last, with copies of the embedding."""
    config = {**LLAMA_70B, "num_hidden_layers": 2}
    layer = "model.layers.2"
    extra = [
        *checkpoints.matrix(f"{layer}.eh_proj", 8192, 16384, "bf16"),
        checkpoints.tensor(f"{layer}.embed_tokens.weight", "BF16", 128256, 8192),
        checkpoints.tensor(f"{layer}.shared_head.head.weight", "BF16", 128256, 8192),
    ]
    _, found = counted(config, [*checkpoints.dense(config, "bf16"), *extra])
    _, without = counted(config, checkpoints.dense(config, "bf16"))
    assert found.part("drafter").bytes == 2 * 8192 * 16384
    assert found.memory_bytes() == without.memory_bytes()
    assert found.memory_bytes(drafter=True) == without.memory_bytes() + 2 * 8192 * 16384
    assert found.step_bytes() == without.step_bytes()
