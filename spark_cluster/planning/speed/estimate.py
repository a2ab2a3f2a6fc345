"""A predicted figure with its range, and why the range is as wide as it is."""

from __future__ import annotations

from dataclasses import dataclass, field

from spark_cluster.config.engines import dialect
from spark_cluster.models.weights import formats, step_bytes
from spark_cluster.planning.speed.serving import Serving

SMALLEST = 1e8
"""Bytes of weights read for a token below which other things than reading decide; the smallest
model that the constants were fitted on reads 3.3 GB."""


@dataclass(frozen=True)
class Estimate:
    """A figure: tokens/s or seconds.

    Attributes:
        roofline: what the memory's bandwidth (or the chip's arithmetic) would give by itself.
    """

    expected: float
    low: float
    high: float
    roofline: float

    def to_dict(self, digits: int = 2) -> dict[str, float]:
        """Return it as `--json` prints it."""
        return {
            "expected": round(self.expected, digits),
            "low": round(self.low, digits),
            "high": round(self.high, digits),
            "roofline": round(self.roofline, digits),
        }

    def times(self, factor: float) -> Estimate:
        """Return the estimate with all figures multiplied."""
        return Estimate(
            *(factor * each for each in (self.expected, self.low, self.high, self.roofline))
        )


@dataclass
class Uncertainty:
    """The uncertainty of a figure, as shares of it, and its reasons."""

    down: float
    up: float
    why: list[str] = field(default_factory=list)

    def more(self, reason: str, down: float, up: float | None = None) -> None:
        """Widen the range."""
        self.down = min(self.down + down, 0.9)
        self.up += down if up is None else up
        self.why.append(reason)

    def text(self, basis: str) -> str:
        """Describe what a figure is based on."""
        if not self.why:
            return basis
        *most, last = self.why
        reasons = f"{', '.join(most)} and {last}" if most else last
        return f"{basis}; the range is wider for {reasons}"


def family(serving: Serving, doubt: Uncertainty) -> None:
    """Widen for models unlike those that the constants were fitted on (Gemma 4 dense and MoE)."""
    geometry = serving.geometry
    if not geometry.known:
        doubt.more("a family that is guessed by its shape", 0.20)
    elif not geometry.model_type.startswith("gemma4"):
        doubt.more(f"another family ({geometry.model_type})", 0.10)
    if not dialect(serving.engine).planned:
        doubt.more(f"another engine ({dialect(serving.engine).title})", 0.25)
    if step_bytes(geometry, serving.quantization) < SMALLEST:
        doubt.more("a model so small that reading it takes no time", 0.50)
    if geometry.latent or geometry.recurrent:
        doubt.more("its latent or recurrent layers", 0.10)
    fitted = {"bf16", "nvfp4", "fp8", "fp8-online"} | (set() if geometry.is_moe else {"awq-int4"})
    if serving.quantization not in fitted:
        doubt.more(f"{serving.quantization} weights", 0.08)
    lies = formats(geometry, serving.quantization)
    if not geometry.is_moe and lies["attention"] == "nvfp4":
        # Llama 3.3 70B NVFP4: 4.0 to 4.2 tokens/s where 5.4 are expected (dgx-spark-playbooks 79).
        doubt.more("NVFP4 attention", 0.08)
    if serving.tp > 1 and geometry.is_moe:
        doubt.more("experts on several nodes", 0.10, 0.20)
    if serving.tp > 2:
        doubt.more("more than two nodes", 0.10)
