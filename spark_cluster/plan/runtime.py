"""What a vLLM server takes beside weights and KV cache at a given share, part by part.

vLLM takes off a share, before the rest becomes the KV cache: the weights as loaded, the peak of one
profiling pass (`profile_run`: a forward of --max-num-batched-tokens, then the sampler for
--max-num-seqs), memory outside PyTorch, and since 0.20 an estimate of its CUDA graphs. Each part is
counted here from the launch line, the model's shape and the version; what cannot be known ahead is
a range. Sources: vllm-source (`v1/worker/gpu_worker.py`, `gpu_model_runner.py`,
`gpu/model_runner.py` of 0.19 to 0.33) and measured-kv-share (`tests/data/gpu/kv-share`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any

from packaging.version import Version

from spark_cluster.config.launch import Launch
from spark_cluster.config.recipe_schema import json_object
from spark_cluster.config.schema import Document, Rounded
from spark_cluster.config.yamlfile import table_beside
from spark_cluster.models.shape import Geometry
from spark_cluster.plan.kv_rules import vllm_version
from spark_cluster.plan.room import (
    NodeMemory,
    allowed_items,
    batched_tokens,
    has_own_memory,
    sequences,
    text_only,
)
from spark_cluster.plan.serving import ServingSetup

MIB = 1024**2
MIB_OF_GIB = 1024.0

GRAPHS_PROFILED = Version("0.20")
"""From here on the estimate of CUDA graphs is taken off (VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS,
1 in `envs.py` of 0.20.0 and 0 in that of 0.19.0; vLLM's log line says 0.21.0)."""
READ_BEFORE = Version("0.27")
"""From here on graphs are profiled after vLLM's last reading (`determine_available_memory`), so
that what is given back meanwhile is in both, and cancels out."""
NEW_RUNNER_PROFILED = Version("0.29")
"""Before, the newer model runner estimated its graphs as 0 (`gpu/model_runner.py`)."""
NEW_RUNNER_DRAFTERS = ("eagle", "eagle3", "mtp", "dflash", "dspark")
_RULES = table_beside(__file__, "data/runner_rules.toml")["rule"]
"""Models that take the newer runner, by version; the newest first."""
ALL_COUNTED = Version("0.27.1")
"""From here on everything that a process allocated counts, also what the newer runner allocates
before the weights (`utils/mem_utils.py`, total_consumed)."""

SAMPLER_BYTES = 14
"""Bytes for each request and token of the vocabulary while the sampler is profiled: logits in 16
bits, then in 32, their probabilities and the noise (`v1/sample/sampler.py`, forward_native;
measured-kv-share: 14.0 to 14.1 for six models)."""
NEW_SAMPLER_BYTES, WARMED_SAMPLER_BYTES = 2, 6
"""The same in the newer runner, whose profiling leaves out top-k and top-p; and where it profiles
the sampler in 32 bits too (`for_sampler_warmup`: 0.33, not in 0.31)."""
SAMPLER_WARMED = Version("0.32")
GATHERED_LOGITS = 2.5
"""Times the logits' bytes, with TP: each rank's part, all parts and their concatenation."""
STATE_BYTES = 4
"""Bytes for each request and token that the newer runner keeps (measured-kv-share)."""
PROCESSORS = {"H100": 132, "H200": 132, "GH200": 132}
"""Streaming multiprocessors: the top-k kernel keeps a row of the vocabulary in 32 bits for each."""
SPARK_PROCESSORS = 48
LIBRARIES_MIB = 32.0
"""cuBLAS's workspace (measured-kv-share, Hopper)."""
OUTSIDE_MIB, OUTSIDE_TP_MIB = 235.0, 110.0
"""Outside PyTorch while profiling, on a GPU of its own; with TP, NCCL's own memory is allocated
before vLLM's first reading (measured-kv-share: 225 to 256, 61 to 143)."""
FIRST_GIB, FIRST_TP_GIB = 0.51, 0.99
"""Held before vLLM's first reading of a GPU of its own, so that no share counts it: CUDA's context,
and with TP over nodes NCCL's buffers for sockets (measured-kv-share, measured-on-h100)."""

MLA_ROWS, MLA_BLOCK = 65_536, 64
"""Most tokens of context that are unpacked for latent attention, and tokens of its blocks."""

UNSEEN_MIB = 384.0
"""What launches that nothing had been read from were off beyond what is known to vary, either way
(measured-kv-unseen, -2 and -3). On a Spark the host's part is wider."""
NARROW, WIDE = 3, 4
"""Hidden states alive at the peak of a feed-forward layer: compiled, eager (measured-kv-share)."""
READ_LAYERS = {"eagle3": 3, "dflash": 5, "dspark": 5}
STATE_PASSES = {True: 4.18, False: 3.34}
"""A gated delta net's projections alive at once, by `eager` (measured-kv-share)."""

TP_SPREAD = 0.3
"""Of the activations at TP=2, either way: seven starts took 27 % less to 35 % more than counted."""

GRAPH_MIB_PER_LAYER = 0.135
"""Of a piecewise graph for each layer (measured-kv-share: 4 to 10 MiB for 24 to 64 layers)."""
FULL_GRAPH_MIB = (1.0, 2.0, 4.0)
"""Of a graph of a whole decode step (measured-kv-share: least, usual, most)."""
LARGEST_GRAPH = 16_384
"""No larger size is counted; vLLM captures none above --max-num-batched-tokens."""
FIRST_GRAPH_MIB = (60.0, 110.0, 160.0)
"""Of the first piecewise graph: the activations that all graphs share (measured-kv-share)."""
ALLREDUCE_MIB = 0.17
"""Of each all-reduce in a captured graph, NCCL between GPUs of one host (measured-kv-share). vLLM's
own, which it takes there unless told not to, keeps nothing."""
NETWORK_ALLREDUCE_MIB = 0.48
"""The same between two Sparks, and the upper end too: one report, MiniMax-M2.7 (eugr-kv-share)."""
SPLITS, LARGEST_SPLIT = 32, 992
"""Partial results for each head that FlashAttention 3 holds in full graphs (Hopper only;
`flash_attn_max_num_splits_for_cuda_graph`), and most requests for which it does."""

HOST_GIB = (0.8, 2.6, 4.6)
"""On unified memory vLLM counts what the host's processes took since its first reading as its own
(`MemorySnapshot.measure` reads psutil there): least, usual, most, without a tower. Seven starts,
weights of 18 to 75 GiB took 1.1 to 4.1, 2.6 on average (source: published-kv-share)."""
HOST_OF_NEWER_GIB = (0.0, 1.2, 4.6)
"""The same of one Spark from NEW_RUNNER_PROFILED on: four starts of one owner took -0.4 to 1.1
(source: published-kv-share), and vLLM's own process grew by 0.45 to 0.57 on an H100's host, with
0.26 and 0.30 alike (measured-host-growth). Why it was more before is not known."""
HOST_OF_TOWER_GIB = (1.2, 2.1, 3.2)
"""More of it where a tower is profiled: its largest images are made on the CPU
(`_get_mm_dummy_batch`). 28 starts took 2.4 to 7.7 in all (source: published-kv-share)."""
HOST_OF_IMAGE_GIB, HOST_PATCHES = 0.42, 65_536
"""And of each further image of so many patches: their pixels are put side by side in memory that is
pinned and kept. One Spark's "non-torch profile increase" was 4.00 GiB with two images and 4.84 with
four (source: published-kv-share)."""
HOST_OF_SMALL_GIB = (0.0, 1.1, 2.6)
"""The same of models up to 2 GiB: 0.2, 1.8 and none in three starts (source: small-kv-share)."""
HOST_GROWS_GIB = (2.0, 17.0)
"""Weights on a node between which it grows evenly; assumed (one start with 7.4 GiB took 1.5)."""
RANKS_GIB = (0.8, 2.9, 4.0)
"""More of it with several nodes: NCCL's buffers, Ray (one start, MiniMax-M2.7; range assumed)."""

UNIFIED_GRAPHS = (0.75, 2.5, 4.6)
"""Times what graphs take on a GPU of its own, on one Spark, where the readings hold what the host
took meanwhile (source: published-kv-share). Over several it is in NETWORK_ALLREDUCE_MIB."""
LEAST_READ_GIB = -0.9
"""Least estimate for graphs on one Spark, by five of 20 starts (source: published-kv-share): to
CUDA's free memory, which vLLM reads, page cache does not belong, and some is given back."""

IMAGES = {"qwen2_": (16_384, 88_000), "qwen": (16_384, 65_536), "gemma3_": (256, 4096)}
"""Tokens and patches of the largest image, by the word in the model type: Qwen's processors allow
16,384 tokens of four patches each, Gemma 3's make 256 of 896 by 896 pixels. Qwen2-VL's and
Qwen2.5-VL's count a third more, for a wider tower (measured-kv-unseen-4). The tower is profiled
with as many as fill --max-num-batched-tokens, at least one (`encoder_budget.py`,
measured-kv-unseen-3), and no more than --max-num-seqs requests may have."""
LONGEST_VIDEO = 7
"""Images of the largest size in the longest video (14 frames) of Qwen2-VL and Qwen2.5-VL, as far as
--max-model-len holds them: the tower is profiled with it in place of an image (`qwen2_vl.py`)."""
USUAL_PATCHES = 8192
"""Patches of one image of other models, whose number of tokens is not known."""
DEEPSTACK_LEVELS = 4
"""Vectors that Qwen3-VL's tower makes of a token: its output, and three for layers of the model."""
PATCH_BYTES = 2 * (2 * 4304 + 4 * 1152)
"""Of a patch at the peak of a tower of 1,152 and 4,304 (SigLIP so400m, Qwen3-VL), 16 bits."""


@dataclass(frozen=True)
class Range(Document):
    """GiB on one node: least, expected, most."""

    low: Annotated[float, Rounded(2)]
    expected: Annotated[float, Rounded(2)]
    high: Annotated[float, Rounded(2)]

    def __add__(self, other: Range) -> Range:
        return Range(self.low + other.low, self.expected + other.expected, self.high + other.high)


NOTHING = Range(0.0, 0.0, 0.0)


def exactly(gib: float) -> Range:
    """A part that is known."""
    return Range(gib, gib, gib)


@dataclass(frozen=True)
class Runtime(Document):
    """What a server takes beside weights and KV cache, GiB on each node.

    Attributes:
        activations: the peak of the profiling pass.
        graphs: CUDA graphs, where this version takes an estimate of them off the share.
        outside: outside PyTorch: CUDA, NCCL; on unified memory the host's processes too.
        graphs_captured: sizes that are captured: piecewise and whole steps.
        largest_graph: of them, tokens.
        before_share: held before vLLM's first reading, and so in addition to the share.
    """

    activations: Range
    graphs: Range
    outside: Range
    graphs_captured: tuple[int, int] = (0, 0)
    largest_graph: int = 0
    before_share: float = 0.0

    @property
    def total(self) -> Range:
        """All of it."""
        return self.activations + self.graphs + self.outside


def runtime(
    launch: Launch, serving: ServingSetup, rooms: Sequence[NodeMemory], weights_gib: float
) -> Runtime:
    """Count what a launch takes beside weights and cache on nodes like these.

    Args:
        weights_gib: of a node.
    """
    case = _Case.of(launch, serving, rooms)
    return Runtime(
        _activations(case),
        _graphs(case) if case.graphs_counted else NOTHING,
        _outside(case, weights_gib),
        (len(case.piecewise), len(case.full)),
        max((*case.piecewise, *case.full), default=0),
        (FIRST_TP_GIB if case.tp > 1 else FIRST_GIB) if case.own else 0.0,
    )


def may_give_back(launch: Launch, rooms: Sequence[NodeMemory]) -> bool:
    """Return whether memory that fastsafetensors took to load an MTP layer may be given back while
    graphs are profiled, which then count as less than nothing (vllm-44740)."""
    estimated = GRAPHS_PROFILED <= vllm_version(launch.vllm) < READ_BEFORE
    estimated &= launch.env.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS") != "0"
    mtp = "mtp" in str(launch.speculative.get("method") or "")
    fast = launch.text("load-format") == "fastsafetensors"
    return estimated and mtp and fast and not has_own_memory(rooms)


@dataclass(frozen=True)
class _Case:
    """Everything in a launch that the parts depend on.

    Attributes:
        requests: --max-num-seqs, or the default of this version on these GPUs.
        piecewise, full: batch sizes whose graphs are captured, tokens.
        newer: the newer model runner.
        vision: a tower is profiled, and the embedding is outside the compiled graph.
        length: tokens of a request.
        custom_reduce: GPUs of one host may add up without NCCL (`custom_all_reduce.py`).
    """

    launch: Launch
    serving: ServingSetup
    geometry: Geometry
    tp: int
    tokens: int
    requests: int
    version: Version
    newer: bool
    own: bool
    gpu: str
    vision: bool
    piecewise: tuple[int, ...]
    full: tuple[int, ...]
    length: int
    custom_reduce: bool

    @classmethod
    def of(cls, launch: Launch, serving: ServingSetup, rooms: Sequence[NodeMemory]) -> _Case:
        geometry, version = serving.geometry, vllm_version(launch.vllm)
        requests = sequences(launch, rooms)
        tokens = batched_tokens(launch)
        newer = _newer_runner(launch, serving, version)
        own = has_own_memory(rooms)
        piecewise, full = ((), ()) if serving.eager else _captured(launch, geometry, requests)
        return cls(
            launch,
            serving,
            geometry,
            launch.tp,
            tokens,
            max(1, min(requests, tokens)),
            version,
            newer,
            own,
            rooms[0].gpu if rooms else "",
            geometry.tower_parameters > 0 and not text_only(launch),
            piecewise,
            full,
            int(max(launch.number("max-model-len") or 0, 0)) or geometry.max_positions,
            own and launch.args.get("disable-custom-all-reduce") is not True,
        )

    @property
    def vocab(self) -> int:
        """Rows of the output layer, which vLLM pads to 64."""
        return math.ceil(self.geometry.vocab / 64) * 64

    @property
    def graphs_counted(self) -> bool:
        """True if an estimate of the graphs is taken off the share."""
        since = NEW_RUNNER_PROFILED if self.newer else GRAPHS_PROFILED
        off = self.launch.env.get("VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS") == "0"
        return self.version >= since and not off and bool(self.piecewise or self.full)

    @property
    def hopper(self) -> bool:
        """True if FlashAttention 3 is what vLLM takes here."""
        return self.own and any(name in self.gpu for name in PROCESSORS)


def _newer_runner(launch: Launch, serving: ServingSetup, version: Version) -> bool:
    """Return whether vLLM takes `v1/worker/gpu/model_runner.py` (`use_v2_model_runner`)."""
    asked = launch.env.get("VLLM_USE_V2_MODEL_RUNNER")
    if asked is not None:
        return str(asked) not in ("0", "False", "")
    method = str(launch.speculative.get("method") or "")
    if method and method not in NEW_RUNNER_DRAFTERS:
        return False
    geometry = serving.geometry
    rule: dict[str, Any] = next((rule for rule in _RULES if version >= Version(rule["since"])), {})
    if any(name in rule.get("classes", ()) for name in geometry.architectures):
        return rule.get("quantized", False) or serving.quantization in ("bf16", "fp8-online")
    dense = not geometry.is_moe and not geometry.recurrent
    return rule.get("all", False) or (rule.get("dense", False) and dense)


def _captured(
    launch: Launch, geometry: Geometry, requests: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The sizes whose graphs are captured (`config/vllm.py`, `_set_cudagraph_sizes`)."""
    config = json_object(launch.args.get("compilation-config"))
    mode = str(config.get("cudagraph_mode") or "FULL_AND_PIECEWISE").upper()
    if mode == "NONE":
        return (), ()
    step = 1 + launch.drafted_tokens
    given = config.get("cudagraph_capture_sizes")
    largest = launch.number("max-cudagraph-capture-size") or config.get(
        "max_cudagraph_capture_size"
    )
    if isinstance(given, list) and given:
        sizes = sorted(size for size in given if type(size) is int and 0 < size <= LARGEST_GRAPH)
    else:
        usual = 1024 if geometry.model_type == "gpt_oss" else min(requests * step * 2, 512)
        asked = largest if isinstance(largest, (int, float)) and largest > 0 else usual
        top = int(min(asked, LARGEST_GRAPH))
        sizes = [1, 2, 4, *range(8, min(256, top + 1), 8), *range(256, top + 1, 16)]
        sizes = [size for size in sizes if size <= top]
    if step > 1:
        sizes = sorted({math.ceil(size / step) * step for size in sizes})
    decode = tuple(size for size in sizes if size <= requests * step)
    mixed = tuple(sizes)
    if mode in ("FULL_DECODE_ONLY", "FULL"):
        return (), decode if mode == "FULL_DECODE_ONLY" else mixed
    return mixed, () if mode == "PIECEWISE" else decode


def _activations(case: _Case) -> Range:
    """The peak of `profile_run`: what stays, and the larger of forward, sampler and compilation.

    On a first start Inductor benchmarks kernels on copies of their inputs, the embedding among
    them where it is part of the graph; with a filled cache of compiled graphs it does not. So the
    lower end is a later start's, and a first start is what is expected.
    """
    experts = _experts_mib(case)
    tower, made = _tower_mib(case)
    kept = LIBRARIES_MIB + experts + made
    forward = max(_forward_mib(case), _dense_mib(case) - experts) + _handed_on_mib(case)
    hidden = case.tokens * case.geometry.hidden * 2 / MIB
    sampled = hidden + _sampler_mib(case)
    warm = kept + max(forward, sampled)
    first = warm
    if not case.serving.eager and not case.vision:
        embedding = case.vocab / case.tp * case.geometry.hidden * 2 / MIB
        first = max(warm, embedding + 2 * hidden)
    more = case.requests * (case.vocab * STATE_BYTES / MIB + 0.05) if case.newer else 0.0
    if case.version < ALL_COUNTED:
        more = 0.0
    slack = (TP_SPREAD if case.tp > 1 else 0.02) * first + (UNSEEN_MIB if case.own else 16)
    least = kept + max(forward - _quantized_mib(case), sampled)
    low = max(0.0, max(least, LIBRARIES_MIB + tower / 2) + more - slack)
    expected = max(first, LIBRARIES_MIB + tower) + more
    high = max(first, LIBRARIES_MIB + tower * 1.6) + more + slack
    return Range(low / MIB_OF_GIB, expected / MIB_OF_GIB, high / MIB_OF_GIB)


def _handed_on_mib(case: _Case) -> float:
    """Hidden states of READ_LAYERS that a drafter reads, by the start of its method, and as much
    for its keys and values of the whole batch (`dflash.py`, `precompute_and_store_context_kv`)."""
    method = str(case.launch.speculative.get("method") or "")
    layers = next((n for word, n in READ_LAYERS.items() if method.startswith(word)), 0)
    return (1 + 1 / case.tp) * layers * case.tokens * case.geometry.hidden * 2 / MIB


def _experts_mib(case: _Case) -> float:
    """The experts' two workspaces, kept between layers (`fused_moe/modular_kernel.py`)."""
    experts = case.geometry.experts
    if experts is None or (case.hopper and case.serving.quantization == "mxfp4"):
        return 0.0  # Triton's kernels for MXFP4 (`OAITritonMxfp4ExpertsMonolithic`) keep nothing
    width = experts.latent or case.geometry.hidden
    inner = experts.intermediate / case.tp
    return case.tokens * experts.top_k * (max(inner, width) + max(2 * inner, width)) * 2 / MIB


def _forward_mib(case: _Case) -> float:
    """What one layer of the widest kind holds at its peak, for a batch of tokens."""
    geometry, tp = case.geometry, case.tp
    hidden = geometry.hidden
    dense = geometry.dense_layers or not geometry.is_moe
    widths = [_dense_width(case) if dense and not case.geometry.dense_first else 0.0]
    for part in geometry.attention:
        queries = part.q_heads * part.head_dim / tp
        keys = max(1.0, part.kv_heads / tp) * part.head_dim
        joined = queries * (2 if part.gated else 1) + keys + keys * part.value_dim / part.head_dim
        if case.serving.eager:
            widths.append(joined + 2 * queries + keys + 3 * hidden)
        else:
            widths.append(joined + 3 * queries + keys + 2 * hidden)
    context = 0.0
    if geometry.latent is not None:
        latent = geometry.latent
        own = latent.q_heads / tp * (latent.nope_dim + latent.rope_dim + latent.value_dim)
        own += latent.rank + latent.rope_dim
        widths.append(2 * own + 3 * hidden)
        beside = case.tokens * (own + (latent.q_rank or 0) + 2 * hidden)
        context = _context_mib(case) * MIB / 2 + beside
    for state in geometry.recurrent:
        # q, k and v pass the convolution; the gate has the size of v, of two thirds here
        joined = state.conv_elements / max(1, state.conv_width) * 1.5 / tp
        widths.append(STATE_PASSES[case.serving.eager] * joined)
    return max(2 * case.tokens * max(widths) / MIB + _quantized_mib(case), 2 * context / MIB)


def _dense_width(case: _Case) -> float:
    """Elements a token that a dense feed-forward layer holds at its peak."""
    states = WIDE if case.serving.eager else NARROW
    return 3 * case.geometry.intermediate / case.tp + states * case.geometry.hidden


def _dense_mib(case: _Case) -> float:
    """The first layers of a model with experts, where they are dense: they run before the experts'
    workspaces are there (measured-kv-unseen-3)."""
    if not case.geometry.dense_first:
        return 0.0
    return 2 * case.tokens * _dense_width(case) / MIB


def _quantized_mib(case: _Case) -> float:
    """The input of the second matrix of a feed-forward layer in FP8, next to that in 16 bits: there
    in two starts of two models (measured-kv-share, measured-kv-unseen-2), not in those of a third.
    """
    if (
        not (case.serving.eager and case.serving.quantization.startswith("fp8"))
        or case.geometry.is_moe
    ):
        return 0.0
    return case.tokens * case.geometry.intermediate / case.tp / MIB


def _context_mib(case: _Case) -> float:
    """The context of earlier chunks that MLA unpacks at once where it has no batch to go by
    (`determine_chunked_prefill_workspace_size`); sparse attention unpacks none.
    """
    latent = case.geometry.latent
    if latent is None or latent.index_heads:
        return 0.0
    paged = case.requests * MLA_BLOCK
    rows = max(min(max(8 * case.length, 4 * paged), MLA_ROWS), paged)
    return 2 * rows * latent.q_heads / case.tp * (latent.nope_dim + latent.value_dim) / MIB


def _sampler_mib(case: _Case) -> float:
    """Logits and the sampler for --max-num-seqs requests, with the top-k kernel's rows."""
    logits = case.requests * case.vocab / MIB
    if case.newer:
        warmed = WARMED_SAMPLER_BYTES if case.version >= SAMPLER_WARMED else NEW_SAMPLER_BYTES
        return logits * max(warmed, NEW_SAMPLER_BYTES * (GATHERED_LOGITS if case.tp > 1 else 1))
    own = next((n for name, n in PROCESSORS.items() if name in case.gpu), SPARK_PROCESSORS)
    rows = min(own, case.requests) * case.vocab * 4 / MIB
    verified = logits * 6 if case.launch.drafted_tokens else 0.0
    return logits * SAMPLER_BYTES + verified + rows


def _images(case: _Case) -> tuple[int, int, int]:
    """How many of the largest images a tower is profiled with, and tokens and patches of one."""
    words = case.geometry.model_type
    usual = (max(1, case.tokens), USUAL_PATCHES)
    tokens, patches = next((image for word, image in IMAGES.items() if word in words), usual)
    held = max(1, case.length // tokens)
    allowed = allowed_items(case.launch, "image")
    images = max(1, min(case.tokens // tokens, case.requests * min(held, allowed)))
    if "qwen2_" in words and allowed_items(case.launch, "video"):
        images = max(images, min(held, LONGEST_VIDEO))
    return images, tokens, patches


def _tower_mib(case: _Case) -> tuple[float, float]:
    """A vision tower's pass, whose true size depends on the processor's limits, and of it what is
    kept while the model's pass is profiled (`profile_run`: `encoder_cache`)."""
    if not case.vision or (case.newer and case.version < ALL_COUNTED):
        return 0.0, 0.0
    images, tokens, patches = _images(case)
    levels = DEEPSTACK_LEVELS if "qwen3_vl" in case.geometry.model_type else 1
    made = images * levels * tokens * case.geometry.hidden * 2 / MIB
    return images * patches * PATCH_BYTES / MIB + made, made


def _graphs(case: _Case) -> Range:
    """As vLLM estimates them: the larger first capture, and the second one's size for the others
    (`profile_cudagraph_memory`). A piecewise capture knows no batch, so that MLA unpacks its
    context once more (measured-kv-unseen-2), and the MTP layers too (measured-kv-unseen-3);
    whether the newer runner's does is not known.
    """
    context = _context_mib(case) * (2 if case.launch.drafted_tokens else 1)
    unpacked = (0.0, 0.0, context) if case.newer else (context,) * 3
    layers = case.geometry.layers + (1 if case.launch.drafted_tokens else 0)
    reductions = 2 * layers if case.tp > 1 else 0
    each = ALLREDUCE_MIB if case.own else NETWORK_ALLREDUCE_MIB
    least, usual = (0.0, 0.0) if case.custom_reduce else (ALLREDUCE_MIB, each)
    attention = max((p.q_heads * p.head_dim for p in case.geometry.attention), default=0) / case.tp
    split = 0.0
    triton = "TRITON" in case.launch.text("attention-backend").upper()
    if case.hopper and case.full and case.full[-1] <= LARGEST_SPLIT and not triton:
        split = attention * 4 * SPLITS * case.full[-1] / MIB + 4
    ends = []
    for n, (whole, first) in enumerate(zip(FULL_GRAPH_MIB, FIRST_GRAPH_MIB, strict=True)):
        reduced = (least, usual, each)[n] * reductions
        read = 1.0 if case.own or case.tp > 1 else UNIFIED_GRAPHS[n]
        piece = (0.75, 1.0, 1.3)[n] * GRAPH_MIB_PER_LAYER * layers * read + reduced
        step = whole * read + 0.85 * reduced
        total = max(first * read + unpacked[n] if case.piecewise else 0.0, split)
        total += max(1.0, piece) * max(0, len(case.piecewise) - 1)
        total += max(1.0, step) * max(0, len(case.full) - 1)
        ends.append(total / MIB_OF_GIB)
    if not case.own and case.tp == 1:
        ends[0] = min(ends[0], LEAST_READ_GIB)
    return Range(*ends)


def _outside(case: _Case, weights_gib: float) -> Range:
    """CUDA's and NCCL's own memory; on unified memory that of the host's processes too."""
    mib = OUTSIDE_TP_MIB if case.tp > 1 else OUTSIDE_MIB
    own = Range((mib - 60) / MIB_OF_GIB, mib / MIB_OF_GIB, (mib + 60) / MIB_OF_GIB)
    if case.own:
        return own
    few, many = HOST_GROWS_GIB
    newer = case.tp == 1 and case.version >= NEW_RUNNER_PROFILED
    large = min(max((weights_gib - few) / (many - few), 0.0), 1.0)
    ends = zip(HOST_OF_SMALL_GIB, HOST_OF_NEWER_GIB if newer else HOST_GIB, strict=True)
    host = Range(*(least + large * (most - least) for least, most in ends))
    host += _host_of_tower(case) if case.vision else NOTHING
    return own + host + (Range(*RANKS_GIB) if case.tp > 1 else NOTHING)


def _host_of_tower(case: _Case) -> Range:
    """The largest image is made once, and copied for each one that is profiled."""
    images, _, patches = _images(case)
    more = max(0.0, images * patches / HOST_PATCHES - 1) * HOST_OF_IMAGE_GIB
    return Range(*HOST_OF_TOWER_GIB) + exactly(more)
