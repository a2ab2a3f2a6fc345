"""The constants of the speed formulas, where they come from, and those fitted to own runs."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_cluster.config.yamlfile import shown
from spark_cluster.errors import InvalidFile

if TYPE_CHECKING:
    from spark_cluster.loader.project import Project

CALIBRATION = "calibration.json"
"""File in the project folder that `predict --calibrate` writes and every prediction reads."""

SCHEMA = "spark-cluster.calibration.v1"

PUBLISHED = "fitted to the published runs of Gemma 4 on DGX Spark"

LIMITS = {
    "eta_dense": (0.1, 1.0),
    "eta_moe": (0.1, 1.0),
    "eta_kv": (0.05, 1.0),
    "layer_ms": (0.0, 2.0),
    "allreduce_us": (0.0, 2000.0),
    "allreduce_low_us": (0.0, 2000.0),
    "allreduce_high_us": (0.0, 2500.0),
    "prefill_tflops": (1.0, 500.0),
    "prefill_moe_tflops": (1.0, 500.0),
    "attention_tflops": (0.5, 500.0),
}
"""What a fitted constant can be: a share of the bandwidth is no more than all of it, and the rest
is a factor of ten around what was ever seen."""


@dataclass(frozen=True)
class Constants:
    """The constants of the formulas that do not follow from the model's shape.

    The published ones were fitted to 23 decode points at one request on one Spark (mean error 2 %),
    4 on two, 13 with several requests, 5 with a drafter and 8 prefills, all of Gemma 4 with vLLM
    0.19 and 0.20 (source: muninn-gemma4-26b, muninn-gemma4-31b, sovgrid-gemma4-31b,
    forum-gemma4-31b-fp8, merritt-gemma4-mtp).

    Attributes:
        bandwidth: of the memory, bytes/s (specification of GB10).
        eta_dense: share of it that reading the weights of a dense model reaches.
        eta_moe: the same where there are experts.
        eta_kv: the same for reading the cache.
        layer_ms: time of a layer that no reading explains, ms.
        allreduce_us: one all-reduce of a step between two nodes, us.
        allreduce_low_us, allreduce_high_us: the quickest and the slowest that was seen, us.
        prefill_tflops: what matrix products in FP8 reach, 10^12 operations/s. Also taken for NVFP4,
            for which nothing was fitted.
        prefill_bf16_tflops: the same in BF16 and where weights are unpacked to BF16: half, as the
            chip's specification has it; not fitted.
        prefill_moe_tflops: with experts; from 6,265 tokens/s of Qwen3.6-35B-A3B at 8,192 tokens
            (vllm-project/recipes pull request 918); not fitted.
        attention_tflops: what attention reaches, forced to Triton for Gemma 4's head sizes.
        prefill_ms: of every request, ms.
        eager_layer_ms: what launching the kernels of a layer one by one takes, ms; without CUDA
            graphs a step is no shorter (26 instead of 59 tokens/s of gpt-oss-120b's 36 layers in
            an owner's notes). Not fitted.
        link: what an all-reduce of a prefill reaches between two nodes, bytes/s.
        verify: how much longer a step takes that verifies drafted tokens, as a factor.
        draft_ms: one drafted token, ms.
        basis: what they were fitted to, for people.
    """

    bandwidth: float = 273e9
    eta_dense: float = 0.848
    eta_moe: float = 0.714
    eta_kv: float = 0.705
    layer_ms: float = 0.104
    allreduce_us: float = 105.0
    allreduce_low_us: float = 60.0
    allreduce_high_us: float = 175.0
    prefill_tflops: float = 102.0
    prefill_bf16_tflops: float = 51.0
    prefill_moe_tflops: float = 35.0
    attention_tflops: float = 12.37
    prefill_ms: float = 36.0
    eager_layer_ms: float = 1.07
    link: float = 12.8e9
    verify: float = 1.2
    draft_ms: float = 4.61
    basis: str = PUBLISHED

    def to_dict(self) -> dict[str, float]:
        """The figures by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "basis"}


def load_constants(project: Project) -> Constants:
    """The constants fitted to the user's runs when the project has a calibration, else ours.

    Raises:
        InvalidFile: the calibration cannot be read or holds something that cannot be.
    """
    path = project.folder / CALIBRATION
    return read_constants(path) if path.is_file() else Constants()


def read_constants(path: Path) -> Constants:
    """The constants in a calibration file.

    Raises:
        InvalidFile: it cannot be read, is no calibration, or holds something that cannot be.
    """
    hint = "create it again with `predict --calibrate RESULTS`, or remove it"
    try:
        data: Any = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise InvalidFile(f"no calibration: {error}", where=shown(path), hint=hint) from None
    found = data.get("constants") if isinstance(data, dict) else None
    if not isinstance(found, dict) or data.get("schema") != SCHEMA:
        raise InvalidFile(f"expected schema {SCHEMA}", where=shown(path), hint=hint)
    usual = Constants().to_dict()
    for name, value in found.items():
        if name not in usual:
            raise InvalidFile(f"unknown constant '{name}'", where=shown(path), hint=hint)
        low, high = LIMITS.get(name, (usual[name] / 100, usual[name] * 100))
        number = isinstance(value, int | float) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or not low <= value <= high:
            message = f"{name}: found {value!r}, expected {low:g} to {high:g}"
            raise InvalidFile(message, where=shown(path), hint=hint)
        usual[name] = float(value)
    return Constants(**usual, basis=_basis(data, path))


def _basis(data: dict[str, Any], path: Path) -> str:
    """Return what a calibration rests on, for people."""
    points = data.get("points", "your")
    link = "your own link as measured" if data.get("measured") else ""
    if link and points == 0:
        return f"{PUBLISHED}, {link} ({path.name})"
    fitted = f"calibrated to {points} points of your own"
    return f"{fitted}{' and ' if link else ''}{link} ({path.name})"
