"""The shape by which vLLM looks for the tuned parameters of its Triton kernel for experts.

The file's name is that of `get_config_file_name` in vLLM's fused_moe.py, and its own tuner
(benchmarks/kernels/benchmark_moe.py) writes it so. source: vllm-benchmark-moe
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from spark_cluster.models.shape import Geometry

CONFIGURATIONS, CONFIGURATIONS_BY_BLOCK = 1920, 640
"""Configurations that the tuner tries for a batch size; fewer for weights scaled in blocks of 128.
source: vllm-benchmark-moe (`get_configs_compute_bound`)"""

OTHER_KERNELS = {
    "nvfp4": "NVFP4 weights run on kernels of FlashInfer, CUTLASS or Marlin",
    "mxfp4": "MXFP4 weights run on kernels of FlashInfer, triton_kernels or Marlin",
    "awq-int4": "INT4 weights run on Marlin's kernels",
    "gptq-int4": "INT4 weights run on Marlin's kernels",
}
"""Why weights of a format have nothing to tune. Source: vLLM's fused_moe/oracle/*.py."""

TRITON_BACKENDS = ("auto", "triton")
"""Values of --moe-backend with which the Triton kernel may run."""


class NothingToTune(Exception):
    """The Triton kernel for experts does not run, or its tuner does not know this format."""


@dataclass(frozen=True)
class KernelShape:
    """What the kernel's parameters are tuned for.

    Attributes:
        experts: on one GPU.
        intermediate: of one expert on one GPU.
        dtype: `fp8_w8a8`; empty for weights as trained.
        block: rows and columns of a block of weights with a scale of its own.
    """

    experts: int
    intermediate: int
    dtype: str = ""
    block: tuple[int, int] | None = None

    def file_name(self, gpu: str) -> str:
        """Return the name of the file that vLLM looks for.

        Args:
            gpu: its name, as nvidia-smi gives it.
        """
        device = re.sub(r"[\s/]+", "_", gpu)
        dtype = f",dtype={self.dtype}" if self.dtype else ""
        block = f",block_shape=[{self.block[0]},{self.block[1]}]" if self.block else ""
        return f"E={self.experts},N={self.intermediate},device_name={device}{dtype}{block}.json"

    @property
    def configurations(self) -> int:
        """Configurations that the tuner tries for each batch size."""
        return CONFIGURATIONS_BY_BLOCK if self.dtype and self.block else CONFIGURATIONS


def kernel_shape(
    geometry: Geometry, config: Mapping[str, Any], flags: Mapping[str, Any], tp: int
) -> KernelShape:
    """Return the shape of a model's experts on one GPU.

    Args:
        config: its config.json.
        flags: of the engine without dashes.
        tp: tensor-parallel size.

    Raises:
        NothingToTune: with the reason.
    """
    experts = geometry.experts
    if experts is None:
        raise NothingToTune("it has no experts, and the tuner is for a mixture of experts only")
    backend = str(flags.get("moe-backend", "auto"))
    if backend not in TRITON_BACKENDS:
        raise NothingToTune(f"--moe-backend {backend} leaves out the Triton kernel")
    quantization = str(geometry.quantization or flags.get("quantization") or "")
    if quantization not in ("", "fp8"):
        why = OTHER_KERNELS.get(quantization, "the tuner does not know this format")
        raise NothingToTune(f"its weights are {quantization}: {why}")
    block = _block(config) if quantization else None
    dtype = "fp8_w8a8" if quantization else ""
    if flags.get("enable-expert-parallel"):
        _must_divide(experts.count, tp, "experts")
        return KernelShape(experts.count // tp, experts.intermediate, dtype, block)
    _must_divide(experts.intermediate, tp, "rows of an expert")
    return KernelShape(experts.count, experts.intermediate // tp, dtype, block)


def _must_divide(size: int, tp: int, what: str) -> None:
    if size % tp:
        raise NothingToTune(f"{size} {what} cannot be divided by {tp}")


def _block(config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return the block of weights that has a scale of its own; None where there is none."""
    text = config.get("text_config")
    for level in (config, text if isinstance(text, Mapping) else {}):
        section = level.get("quantization_config")
        block = section.get("weight_block_size") if isinstance(section, Mapping) else None
        if isinstance(block, list) and len(block) == 2 and all(isinstance(n, int) for n in block):
            return block[0], block[1]
    return None
