"""The shape of experts that a tuned file is for, by names of files that vLLM ships."""

from __future__ import annotations

from typing import Any

import pytest

from spark_cluster.models.config import from_config
from spark_cluster.models.kernel_shape import KernelShape, NothingToTune, kernel_shape

BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
FP8 = {
    "quant_method": "compressed-tensors",
    "config_groups": {
        "group_0": {
            "weights": {"num_bits": 8, "type": "float"},
            "input_activations": {"num_bits": 8, "type": "float"},
        }
    },
}


def config(experts: int = 128, rows: int = 768, **more: Any) -> dict[str, Any]:
    return {
        "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"],
        "num_hidden_layers": 4, "hidden_size": 2048, "vocab_size": 1000,
        "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128,
        "intermediate_size": 6144, "num_experts": experts, "num_experts_per_tok": 8,
        "moe_intermediate_size": rows, "max_position_embeddings": 4096, **more,
    }  # fmt: skip


def shape(given: dict[str, Any], tp: int = 1, **flags: Any) -> KernelShape:
    return kernel_shape(from_config(given, "m"), given, flags, tp)


@pytest.mark.parametrize(
    ("given", "tp", "flags", "name"),
    [
        (config(), 1, {}, "E=128,N=768,device_name=NVIDIA_GB10.json"),
        (config(), 2, {"moe-backend": "triton"}, "E=128,N=384,device_name=NVIDIA_GB10.json"),
        (
            config(256, 512, quantization_config=BLOCKS), 1, {},
            "E=256,N=512,device_name=NVIDIA_GB10,dtype=fp8_w8a8,block_shape=[128,128].json",
        ),
        (
            config(128, 704, quantization_config=FP8), 1, {},
            "E=128,N=704,device_name=NVIDIA_GB10,dtype=fp8_w8a8.json",
        ),
        (
            config(128, 704), 1, {"quantization": "fp8"},
            "E=128,N=704,device_name=NVIDIA_GB10,dtype=fp8_w8a8.json",
        ),
        (
            config(), 2, {"enable-expert-parallel": True},
            "E=64,N=768,device_name=NVIDIA_GB10.json",
        ),
    ],
)  # fmt: skip
def test_the_name_is_that_of_the_file_that_the_engine_looks_for(given, tp, flags, name):
    assert shape(given, tp, **flags).file_name("NVIDIA GB10") == name


def test_blocks_of_weights_leave_fewer_configurations():
    assert shape(config()).configurations == 1920
    assert shape(config(quantization_config=BLOCKS)).configurations == 640


@pytest.mark.parametrize(
    ("given", "tp", "flags", "reason"),
    [
        (config(0), 1, {}, "no experts"),
        (config(quantization_config={"quant_method": "mxfp4"}), 1, {}, "MXFP4 weights run on"),
        (
            config(quantization_config={"quant_method": "modelopt", "quant_algo": "NVFP4"}), 1, {},
            "NVFP4 weights run on kernels of FlashInfer",
        ),
        (config(quantization_config={"quant_method": "awq", "bits": 4}), 1, {}, "Marlin"),
        (config(), 1, {"moe-backend": "marlin"}, "--moe-backend marlin"),
        (config(rows=770), 4, {}, "770 rows of an expert cannot be divided by 4"),
    ],
)  # fmt: skip
def test_there_is_nothing_to_tune(given, tp, flags, reason):
    with pytest.raises(NothingToTune, match=reason):
        shape(given, tp, **flags)
