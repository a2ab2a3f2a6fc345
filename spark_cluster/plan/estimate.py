"""A predicted figure with its range, and the constants that all predictions are made with."""

from __future__ import annotations

import json
import math
from dataclasses import astuple, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_cluster.config.yamlfile import MAX_BYTES, read_foreign, shown
from spark_cluster.errors import InvalidFile
from spark_cluster.models.naming import table
from spark_cluster.plan.serving import ServingSetup

if TYPE_CHECKING:
    from spark_cluster.config.project import Project


# The constants of the speed formulas, where they come from, and those fitted to own runs.

CALIBRATION = "calibration.json"
"""File in the project folder that `predict --calibrate` writes and every prediction reads."""

SCHEMA = "spark-cluster.calibration.v1"

PUBLISHED = "fitted to published runs on DGX Sparks"

LIMITS: dict[str, tuple[float, float]] = table("limits", "plan")["constants"]
"""Least and most that a fitted constant can be."""


@dataclass(frozen=True)
class Constants:
    """The constants of the formulas that do not follow from the model's shape.

    They are fitted by `python -m benchmarks.predictions` to the runs in `plan/data`, each of
    which names its source; the ranges come from fits without the family that is predicted.

    Attributes:
        bandwidth: of the memory, bytes/s (specification of GB10).
        eta_dense: share of it that reading matrices for one token reaches, in BF16, FP8 or INT4.
        eta_moe: the same for experts in BF16 and FP8, which are read in smaller pieces.
        fp4_pace: what NVFP4 and MXFP4 matrices reach of `eta_dense`.
        moe4_pace: what experts in 4 bits that are unpacked (Marlin) reach of `eta_moe`, a factor.
        moe_fp4_pace: the same of experts in NVFP4 that are multiplied as such: their kernels
            quantize the activations too, and pad one token to a tile (39 tokens/s of MiniMax-M2.7
            over two nodes in INT4, 24 in NVFP4; source: docker-197, docker-183).
        eta_kv: share of the bandwidth for reading the cache.
        step_ms: time of a step that no reading explains, ms: scheduling, sampling, launches.
        allreduce_us: one all-reduce of a step between two nodes over RDMA, us; one for each
            residual block.
        allreduce_low_us, allreduce_high_us: the quickest and the slowest that was seen, us.
        allreduce_socket_us: the same over TCP sockets, us (45 and 22 tokens/s instead of 92 and 42;
            source: flash7777).
        sharing: requests alike in content choose experts alike; n tokens in a step choose as many
            as n to this power would that are independent.
        prefill_tflops: what matrix products in FP8 and FP4 reach, 10^12 operations/s. No build in
            FP4 with native kernels was at hand.
        prefill_bf16_tflops: the same in BF16.
        prefill_unpacked_tflops: the same where weights of 4 bits are unpacked to BF16 (INT4, and
            others with Marlin).
        prefill_unpacked_fp8_tflops: the same where weights in FP8 are unpacked to BF16 (Marlin).
        prefill_moe_tflops: experts in any other format.
        prefill_moe_fp4_tflops: experts in FP4 that are multiplied as such (NVFP4; MXFP4 in images
            that take `--mxfp4-layers`).
        attention_tflops: what attention reaches with heads above 256, forced to Triton.
        flash_tflops: the same with smaller heads.
        scan_tflops: what the scan of recurrent layers reaches, whose kernels are written in Triton
            and work on chunks of some dozen tokens.
        activation_passes: how often what is between the products of a prefill is written and read:
            norms, rotary positions, gates, convolutions.
        prefill_ms: of every request, ms.
        prefill_read: how much longer than at the full bandwidth reading the experts takes for each
            chunk of a prompt, as a factor, where it is not hidden behind computing.
        eager_layer_ms: what launching the kernels of a layer one by one takes, ms; without CUDA
            graphs a step is no shorter (26 instead of 59 tokens/s of gpt-oss-120b's 36 layers in
            an owner's notes). Not fitted.
        link: what an all-reduce of a prefill reaches between two nodes, bytes/s.
        draft_ms: one pass of a drafter, ms.
        runtime_gib: memory of a server that is neither weights nor cache at a batch of 2,048
            tokens, GiB: activations, vision profiling, graphs. 6.15 and 5.88 in two logs (source:
            muninn-gemma4-26b, muninn-gemma4-31b), 6.6 at 65,536 in a third.
        basis: what they were fitted to, for people.
    """

    bandwidth: float = 273e9
    eta_dense: float = 0.803
    eta_moe: float = 0.621
    fp4_pace: float = 0.959
    moe4_pace: float = 1.1
    moe_fp4_pace: float = 0.833
    eta_kv: float = 0.853
    step_ms: float = 1.91
    allreduce_us: float = 44.9
    allreduce_low_us: float = 20.0
    allreduce_high_us: float = 175.0
    allreduce_socket_us: float = 168.0
    sharing: float = 0.8
    prefill_tflops: float = 117.0
    prefill_bf16_tflops: float = 73.6
    prefill_unpacked_tflops: float = 54.6
    prefill_unpacked_fp8_tflops: float = 38.7
    prefill_moe_tflops: float = 57.7
    prefill_moe_fp4_tflops: float = 100.0
    attention_tflops: float = 14.9
    flash_tflops: float = 72.5
    scan_tflops: float = 9.55
    activation_passes: float = 14.2
    prefill_ms: float = 21.9
    prefill_read: float = 1.27
    eager_layer_ms: float = 1.07
    link: float = 12.8e9
    draft_ms: float = 1.95
    runtime_gib: float = 6.0
    basis: str = PUBLISHED

    @property
    def measured_runtime_gib(self) -> float | None:
        """`runtime_gib` as own starts logged it; None where it is what others published."""
        return None if self.runtime_gib == Constants.runtime_gib else self.runtime_gib

    def figures(self) -> dict[str, float]:
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
    hint = "create it again with `spark-cluster predict --calibrate RESULTS`, or remove it"
    try:
        data: Any = json.loads(read_foreign(path, MAX_BYTES, "a calibration"))
    except (OSError, ValueError) as error:
        raise InvalidFile(f"no calibration: {error}", where=shown(path), hint=hint) from None
    found = data.get("constants") if isinstance(data, dict) else None
    if not isinstance(found, dict) or data.get("schema") != SCHEMA:
        raise InvalidFile(f"expected schema {SCHEMA}", where=shown(path), hint=hint)
    usual = Constants().figures()
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
    measured = data.get("measured")
    names = measured if isinstance(measured, list) else []
    own = ["your own link as measured"] if any(name != "runtime_gib" for name in names) else []
    own += ["the memory that your own servers logged"] if "runtime_gib" in names else []
    first = PUBLISHED if own and points == 0 else f"calibrated to {points} points of your own"
    return f"{' and '.join([first, *own])} ({path.name})"


# How an all-reduce grows with the nodes: that of two is measured, that of more is arithmetic.
#
# No all-reduce of Sparks over a switch is published. What is sure are the numbers of exchanges and
# of bytes (source: nccl-tests-performance); which way NCCL takes, and what a switch adds, is not.

MEASURED_NODES = 2
"""Nodes of the measured one, which is one exchange."""


def exchanges(nodes: int) -> int:
    """Return the exchanges, one after the other, of a small one along a tree.

    >>> [exchanges(nodes) for nodes in (2, 3, 4, 8)]
    [1, 2, 2, 3]
    """
    return (nodes - 1).bit_length()


def most_exchanges(nodes: int) -> int:
    """Return those around a ring, each way: the slowest way for a small one."""
    return nodes - 1


def carried(nodes: int) -> float:
    """Return what each node sends and receives of a large one, as a share of it.

    >>> carried(2), carried(4)
    (1.0, 1.5)
    """
    return 2 * (nodes - 1) / nodes


SMALLEST = 1e8
"""Bytes of weights read for a token below which other things than reading decide; the smallest
model that the constants were fitted on reads 2.4 GB."""

SHOWN_FROM = 0.05
"""Tokens/s below which one decimal would print 0.0."""


def range_text(low: float, high: float) -> str:
    """Return a range of tokens/s in words.

    >>> range_text(1.26, 3.5), range_text(0.001, 0.002)
    ('1.3 to 3.5', 'under 0.1')
    """
    return f"{low:.1f} to {high:.1f}" if high >= SHOWN_FROM else "under 0.1"


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

    def rounded(self, digits: int = 2) -> Estimate:
        """Return the estimate as it is printed."""
        return Estimate(*(round(each, digits) for each in astuple(self)))

    def times(self, factor: float) -> Estimate:
        """Return the estimate with all figures multiplied."""
        return Estimate(*(factor * each for each in astuple(self)))


WIDER = "; the range is wider for "
"""Between what a figure rests on and why its range is wider than usual."""


@dataclass
class Uncertainty:
    """The uncertainty of a figure, as shares of it, and its reasons."""

    down: float
    up: float
    why: list[str] = field(default_factory=list)

    def more(self, reason: str, down: float, up: float | None = None) -> None:
        """Widen the range."""
        self.down = min(self.down + down * (1 - self.down), 0.9)
        self.up += down if up is None else up
        self.why.append(reason)

    def around(
        self, expected: float, roofline: float, constants: Constants, tp: int = 1
    ) -> Estimate:
        """Return the range around an expected speed; the bound is nowhere exceeded.

        Args:
            constants: of these the spread of the link is taken, where there are two nodes.
        """
        down, up = self.down, self.up
        if tp == MEASURED_NODES and constants.allreduce_high_us <= 1.5 * constants.allreduce_us:
            down, up = min(down, OWN_LINK), min(up, OWN_LINK)  # measured by the user
        low, high = expected * (1 - down), expected * (1 + up)
        return Estimate(expected, min(low, expected), min(max(high, expected), roofline), roofline)

    def text(self, basis: str) -> str:
        """Describe what a figure is based on."""
        if not self.why:
            return basis
        *most, last = self.why
        reasons = f"{', '.join(most)} and {last}" if most else last
        return f"{basis}{WIDER}{reasons}"


OWN_LINK = 0.15
"""Range either way on two nodes where runs over the user's own link were given."""


def family(serving: ServingSetup, doubt: Uncertainty) -> None:
    """Widen for what the measured runs do not cover."""
    geometry = serving.geometry
    if not geometry.known:
        doubt.more("a family that is guessed by its shape", 0.15)
    if not serving.dialect.planned:
        doubt.more(f"another engine ({serving.dialect.title})", 0.20)
    if serving.weights.step_bytes() < SMALLEST:
        doubt.more("a model so small that reading it takes no time", 0.50)
    if geometry.latent:
        doubt.more("its latent attention", 0.10)
    if serving.expert_parallel and serving.tp > 1:
        doubt.more("--enable-expert-parallel", 0.10)
    if serving.data_parallel > 1:
        doubt.more("data-parallel ranks, not measured on Sparks", 0.40)
    if serving.tp > MEASURED_NODES:
        doubt.more("more than two nodes", 0.15)


# Ranges by situation, and how far measured models are off the formulas.
#
# The file is written by `python -m benchmarks.predictions --write` from the measurements in
# `plan/data`; nothing in it is chosen by hand.


def correction(serving: ServingSetup, situation: str) -> float | None:
    """Return how much faster than by the formulas a model is: measured over predicted, drawn
    towards 1 where few sources measured it; None for one that was not measured.

    Args:
        situation: `decode`, `tp`, `drafter` or `prefill`.
    """
    found: float | None = table("fitted", "plan")["models"].get(f"{layout(serving)} {situation}")
    return found


def layout(serving: ServingSetup) -> str:
    """Name a model by what its speed follows from: layers, widths, experts and formats.

    Builds that lie alike have one name, whoever made them.
    """
    geometry, experts = serving.geometry, serving.geometry.experts
    formats = [
        serving.weights.part(name).format for name in ("attention", "mlp", "recurrent", "experts")
    ]
    kinds = sorted({each.replace("-online", "") for each in (*formats, *serving.mxfp4_layers)})
    count = f"-{experts.count}x{experts.top_k}" if experts else ""
    shape = f"{geometry.layers}x{geometry.hidden}{count}"
    return f"{geometry.model_type.removesuffix('_text')} {shape} {'+'.join(kinds)}"


def usual_range(situation: str, *, known_model: bool) -> tuple[float, float]:
    """Return how far below and above the expected figure measured ones lie, as shares of it."""
    found = table("fitted", "plan")["ranges"][situation]["known" if known_model else "other"]
    return 1 - float(found[0]), float(found[1]) - 1
