"""Does it fit: weights, KV cache, runtime and reserve on each node, and the share that follows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Annotated

from pydantic import Field

from spark_cluster.config.engines import with_unit
from spark_cluster.config.launch import Launch, finite
from spark_cluster.config.schema import Document, Hidden, Rounded, derived, printed
from spark_cluster.errors import UsageError
from spark_cluster.models import memory_share
from spark_cluster.models.memory_share import GIB
from spark_cluster.models.shape import Geometry
from spark_cluster.plan import kv
from spark_cluster.plan.kv_layout import DrafterLayers, KvLayout, drafter_layers, not_known
from spark_cluster.plan.room import (
    NodeMemory,
    batched_tokens,
    for_batch_gib,
    has_own_memory,
    largest_stage,
    rank_share,
    ranks_remark,
    sequences,
    stage_gib,
    text_only,
    tower_bytes,
    whole_gib,
    with_default_batch,
)
from spark_cluster.plan.runtime import NOTHING, Range, Runtime, exactly, may_give_back, runtime
from spark_cluster.plan.serving import ServingSetup, of_launch

MEASURED_SPREAD = 0.1
"""Of a runtime that own starts logged, either way: other models take more or less."""

WEIGHTS_MORE = 0.008
"""Of the counted weights: what "Model loading took" was at most above them (source:
measured-on-h200)."""

BUSY_GIB = 8.0
"""More than this in use before the start means a desktop or another program, GiB."""


@dataclass(frozen=True)
class Fit(Document):
    """The memory that a launch takes on each of its nodes, GiB a node unless said otherwise.

    Attributes:
        whole_gib: weights of the whole model and its drafter, on all nodes together.
        weights_gib: when loaded; `loading_gib` is the most while they are loaded, `peak_gib` until
            the server is ready: profiling and its CUDA graphs may take more.
        runtime: neither weights nor cache, with its range; `runtime_gib` is what is expected.
        measured_gib: the same at 2,048 tokens a batch as own starts logged it; None: counted.
        share: --gpu-memory-utilization; None when the cache's size is given instead.
        highest: the largest safe share; `needed` the smallest that does what was asked.
        kv_gib: for the cache, as expected; `kv_low_gib` is what is there at least.
        cache: what that holds, None when there is no room for any.
        remarks: what to know when it does.
    """

    launch: Hidden[Launch]
    serving: Hidden[ServingSetup]
    rooms: Hidden[tuple[NodeMemory, ...]]
    whole_gib: Hidden[float]
    weights_gib: Annotated[float, Rounded(2)]
    peak_gib: Annotated[float, Rounded(2), Field(serialization_alias="load_peak_gib")]
    runtime: Hidden[Runtime]
    measured_gib: Hidden[float | None]
    loading_gib: Hidden[float]
    share: Annotated[float | None, Field(serialization_alias="gpu_memory_utilization")]
    needed: Annotated[float, Field(serialization_alias="gpu_memory_utilization_needed")]
    highest: Annotated[float, Field(serialization_alias="gpu_memory_utilization_highest")]
    kv_gib: Annotated[float, Rounded(2), Field(serialization_alias="kv_cache_gib")]
    kv_low_gib: Annotated[float, Rounded(2), Field(serialization_alias="kv_cache_low_gib")]
    kv_high_gib: Annotated[float, Rounded(2), Field(serialization_alias="kv_cache_high_gib")]
    cache: Hidden[kv.KvCache | None]
    remarks: tuple[str, ...]
    tp = derived(int, "launch.tp")
    pipeline_parallel = derived(int, "launch.pp")
    data_parallel = derived(int, "launch.dp")
    runtime_gib = derived(Annotated[float, Rounded(2)], "runtime.total.expected")
    runtime_low_gib = derived(Annotated[float, Rounded(2)], "runtime.total.low")
    runtime_high_gib = derived(Annotated[float, Rounded(2)], "runtime.total.high")
    activations_gib = derived(Annotated[float, Rounded(2)], "runtime.activations.expected")
    cuda_graphs_gib = derived(Annotated[float, Rounded(2)], "runtime.graphs.expected")
    before_share_gib = derived(Annotated[float, Rounded(2)], "runtime.before_share")
    kv_tokens = derived(int, lambda fit: fit.cache.tokens if fit.cache else 0)
    kv_rule = derived(str | None, lambda fit: fit.cache and fit.cache.rule)

    @printed
    def max_concurrency(self) -> Annotated[float, Rounded(2)]:
        """Requests of full length that the cache holds at a time."""
        return self.cache.max_concurrency if self.cache else 0

    @cached_property
    def reasons(self) -> tuple[str, ...]:
        """Why it does not work; empty when it does."""
        return (*_shape(self), *_memory(self), *_disk(self))

    @property
    def fits(self) -> bool:
        return not self.reasons

    @printed
    def disk_gib(self) -> Annotated[float, Rounded(1)]:
        """Disk space of the model's files: what is loaded at first, less tables of positions.

        None for dummy weights, which are made where they are needed.
        """
        if self.dummy:
            return 0.0
        launch, tables = self.launch, self.serving.geometry.tables_bytes / GIB
        loaded = (self.loading_gib - tables) * launch.tp * launch.pp
        return loaded / rank_share(launch, self.serving)

    @property
    def dummy(self) -> bool:
        """True for weights that mean nothing, which no file is read for (`--load-format dummy`)."""
        return self.launch.text("load-format") == "dummy"

    @property
    def reserved_gib(self) -> float:
        """The memory that a server counts on each node: its share."""
        return self.weights_gib + self.kv_gib + self.runtime.total.expected

    @property
    def vram_gib(self) -> float:
        """The memory that a server holds on each node, as nvidia-smi shows it."""
        return self.reserved_gib + self.runtime.before_share

    @printed
    def max_model_len(self) -> int:
        """Tokens a request may have."""
        return context_length(self.launch, self.serving.geometry)


def fit(
    launch: Launch,
    geometry: Geometry,
    rooms: Sequence[NodeMemory],
    weights_gib: float | None = None,
    *,
    runtime_gib: float | None = None,
) -> Fit:
    """Compute what a launch takes on nodes like these.

    Args:
        launch: with a --gpu-memory-utilization or --kv-cache-memory-bytes of its own, or without.
        rooms: the nodes that would serve.
        weights_gib: of the whole model and its drafter, where they are known already.
        runtime_gib: neither weights nor cache, at a batch of 2,048 tokens; None for what others
            measured on such GPUs.

    Raises:
        UsageError: a quantization or a type of KV cache that is not known, or heads that cannot be
            divided over so many nodes.
    """
    launch = with_default_batch(launch, rooms)
    serving = of_launch(launch, geometry)
    own = has_own_memory(rooms)
    whole = whole_gib(launch, serving, own=own) if weights_gib is None else weights_gib
    fitted = _fitted(launch, serving, rooms, whole, runtime_gib)
    cache = _cache(launch, serving, fitted.kv_low_gib)
    if cache and takes_what_fits(launch) and cache.max_concurrency < 1 <= cache.max_model_len:
        shorter = launch.with_flags({"max-model-len": cache.max_model_len})
        return fit(shorter, geometry, rooms, whole, runtime_gib=runtime_gib)
    if _cache_unread(serving) and _leaves_room(fitted):
        raise _cache_not_known(fitted)
    return replace(fitted, remarks=tuple(_remarks(fitted)))


def _leaves_room(fitted: Fit) -> bool:
    """Return whether weights and runtime may leave room for some cache on every node."""
    return fitted.kv_high_gib > 0 and not any(_on_node(fitted, room) for room in fitted.rooms)


def _cache_unread(serving: ServingSetup) -> str:
    return not_known(serving.geometry, serving.kv_dtype)


def _cache_not_known(fitted: Fit) -> UsageError:
    return UsageError(
        f"whether {fitted.serving.geometry.name} fits is not known here: weights take "
        f"{fitted.weights_gib:.1f} GiB a node, runtime about {fitted.runtime.total.expected:.1f}, "
        f"and vLLM's rule for its KV cache is not read yet: {_cache_unread(fitted.serving)}",
        hint="start it with a small --max-model-len; vLLM prints 'GPU KV cache size'",
    )


def _fitted(
    launch: Launch,
    serving: ServingSetup,
    rooms: Sequence[NodeMemory],
    whole: float,
    measured: float | None,
) -> Fit:
    """Compute the memory of a launch as it is, without remarks.

    Args:
        whole: weights of the whole model and its drafter, GiB.
        measured: neither weights nor cache, of own starts, GiB a node; None: counted.
    """
    weights, loaded = _weights(launch, serving, whole)
    beside = _runtime(launch, serving, rooms, weights, measured)
    total = beside.total + _weights_spread(launch, serving, weights)
    smallest = min(room.total_gib for room in rooms)
    highest = min(memory_share.utilization(room.memory) for room in rooms)
    needed = memory_share.least(weights + total.high + _asked_gib(launch, serving), smallest)
    share, kv_gib = _share(launch, smallest, weights + total.expected, needed, highest)
    spread = total if share is not None else NOTHING
    return Fit(
        launch,
        serving,
        tuple(rooms),
        whole_gib=whole,
        weights_gib=weights,
        peak_gib=max(loaded, weights + _profiling_gib(launch, serving, beside, rooms)),
        runtime=beside,
        measured_gib=measured,
        loading_gib=loaded,
        share=share,
        needed=needed,
        highest=highest,
        kv_gib=max(kv_gib, 0.0),
        kv_low_gib=max(kv_gib + spread.expected - spread.high, 0.0),
        kv_high_gib=max(kv_gib + spread.expected - spread.low, 0.0),
        cache=_cache(launch, serving, kv_gib),
        remarks=(),
    )


def _weights(launch: Launch, serving: ServingSetup, whole: float) -> tuple[float, float]:
    """Return the weights of a node when they are loaded, and the most while they are, GiB."""
    geometry, held = serving.geometry, rank_share(launch, serving)
    weights = held * stage_gib(geometry, launch.pp, whole) / launch.tp
    loading = stage_gib(geometry, launch.pp, serving.load_peak_bytes / GIB)
    return weights, max(weights, held * loading / launch.tp + geometry.tables_bytes / GIB)


def _weights_spread(launch: Launch, serving: ServingSetup, weights: float) -> Range:
    """Return how much less and more than counted the weights of a node can take, GiB.

    While BF16 is quantized to FP8 on the way in, PyTorch may keep the room of the two largest
    matrices (measured-kv-unseen-2: 1.05 GiB of Qwen2.5-32B, nothing of three others), and the
    matrices of a tower are quantized too where its class passes that on (Qwen3-VL).
    """
    more, less, geometry = WEIGHTS_MORE * weights, 0.0, serving.geometry
    if serving.quantization == "fp8-online":
        more += 8 * geometry.intermediate * geometry.hidden / launch.tp / GIB
        less += 0.0 if text_only(launch) else tower_bytes(serving) / 2 / launch.tp / GIB
    return Range(-less, 0.0, more)


def _runtime(
    launch: Launch,
    serving: ServingSetup,
    rooms: Sequence[NodeMemory],
    weights_gib: float,
    measured: float | None,
) -> Runtime:
    """Return what the server takes beside weights and cache: as measured, else counted."""
    counted = runtime(launch, serving, rooms, weights_gib)
    if measured is None:
        return counted
    gib = measured + for_batch_gib(batched_tokens(launch), own=has_own_memory(rooms))
    spread = gib * MEASURED_SPREAD
    rest = gib - counted.activations.expected
    return replace(
        counted,
        activations=exactly(counted.activations.expected),
        graphs=NOTHING,
        outside=Range(rest - spread, rest, rest + spread),
    )


def _profiling_gib(
    launch: Launch, serving: ServingSetup, beside: Runtime, rooms: Sequence[NodeMemory]
) -> float:
    """What profiling takes for seconds in addition to the weights, GiB: activations, then graphs.

    A small KV cache is allocated for them, of a block for each sequence up to the largest graph
    (`_init_minimal_kv_cache_for_profiling`), while PyTorch still holds the activations' memory. Of
    a model with recurrent layers a block is large: 24.6 of the 28 GiB that Qwen3.6-27B took.
    """
    activations = beside.activations.expected
    if not beside.graphs.expected or _cache_unread(serving):
        return activations
    layout = _layout(launch, serving)
    blocks = max(1, min(sequences(launch, rooms), beside.largest_graph))
    return activations + blocks * kv.pool(layout).block_bytes / GIB + beside.graphs.low


def context_length(launch: Launch, geometry: Geometry) -> int:
    """--max-model-len, or what the model can do."""
    given = launch.number("max-model-len")
    return int(given) if given and not takes_what_fits(launch) else geometry.max_positions


def takes_what_fits(launch: Launch) -> bool:
    """`--max-model-len auto`, or -1: the longest request that the cache holds."""
    return launch.args.get("max-model-len") in ("auto", -1, "-1")


def _asked_gib(launch: Launch, serving: ServingSetup) -> float:
    """KV for as many requests of full length as were asked for; one when none is given."""
    requests = int(launch.number("max-num-seqs") or 1)
    length = context_length(launch, serving.geometry)
    if length < 1 or _cache_unread(serving):
        return 0.0
    return kv.bytes_for(_layout(launch, serving), requests, length) / GIB


def _share(
    launch: Launch, total_gib: float, before: float, needed: float, highest: float
) -> tuple[float | None, float]:
    """The share and what it leaves for the cache, GiB.

    Where the number of requests is not given, all that is safe is for the cache.
    """
    given = kv_bytes_given(launch)
    if given is not None:
        return None, given / GIB
    share = launch.number("gpu-memory-utilization")
    if share is None:
        share = min(needed, highest) if launch.number("max-num-seqs") else highest
    return share, share * total_gib - before


def kv_bytes_given(launch: Launch) -> float | None:
    """--kv-cache-memory-bytes: a number, or one with a unit (k, K, m, M, g, G, t, T)."""
    flag = "kv-cache-memory-bytes"
    text = launch.text(flag)
    plain = float(text) if text.replace(".", "", 1).isdecimal() else None
    size = with_unit(text) or plain
    return launch.number(flag) if size is None else finite(size, f"--{flag}")


def _cache(launch: Launch, serving: ServingSetup, kv_gib: float) -> kv.KvCache | None:
    length = context_length(launch, serving.geometry)
    if kv_gib <= 0 or length < 1 or _cache_unread(serving):
        return None
    return kv.cache(_layout(launch, serving), int(kv_gib * GIB), length)


def _layout(launch: Launch, serving: ServingSetup) -> KvLayout:
    """Return everything in a launch that its cache depends on."""
    block, asked = launch.number("block-size"), launch.text("gdn-prefill-backend") or None
    return KvLayout(
        largest_stage(serving.geometry, launch.pp),
        kv_dtype=serving.kv_dtype,
        max_num_batched_tokens=batched_tokens(launch),
        tp=launch.tp,
        vllm=launch.vllm,
        block_size=int(block) if block is not None else None,
        prefix_caching=_switch(launch, "enable-prefix-caching"),
        mamba_cache_mode=launch.text("mamba-cache-mode") or None,
        drafted_tokens=launch.drafted_tokens,
        drafter=_drafter(launch, serving.geometry),
        gdn_prefill=asked if asked != "auto" else None,
        async_scheduling=_switch(launch, "async-scheduling") is not False,
        dcp=int(launch.number("decode-context-parallel-size") or 1),
        device="cpu" if launch.on_cpu else "gpu",
        state_dtype=launch.text("mamba-ssm-cache-dtype") or None,
    )


def _switch(launch: Launch, flag: str) -> bool | None:
    """A flag that can be given as `--FLAG` and `--no-FLAG`; None when it is not."""
    value = launch.args.get(flag)
    if launch.args.get(f"no-{flag}") is True:
        return False
    return value if isinstance(value, bool) else None


def _shape(fitted: Fit) -> list[str]:
    """Return the problems that more memory cannot solve."""
    found, launch, geometry = [], fitted.launch, fitted.serving.geometry
    if len(fitted.rooms) < launch.ranks:
        found.append(f"{_parallel_sizes(launch)} needs {launch.ranks} nodes, one GPU each")
    for flag in ("max-num-seqs", "max-num-batched-tokens", "max-model-len"):
        value = launch.number(flag)
        if value is not None and value < 1 and not (value == -1 and takes_what_fits(launch)):
            found.append(f"--{flag} {value:g}: vLLM needs 1 or more")
    length, allowed = fitted.max_model_len, launch.env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "")
    longer = geometry.max_positions and length > geometry.max_positions
    if longer and allowed.lower() not in ("1", "true"):  # vllm/envs.py
        found.append(
            f"--max-model-len {length} is more than the {geometry.max_positions} tokens that the "
            "model was made for"
        )
    return found


def _parallel_sizes(launch: Launch) -> str:
    """The parallel sizes in words."""
    parts = [f"tensor-parallel size {launch.tp}"]
    parts += [f"{launch.pp} pipeline stages"] if launch.pp > 1 else []
    parts += [f"{launch.dp} data-parallel ranks"] if launch.dp > 1 else []
    return " with ".join([parts[0], " and ".join(parts[1:])] if parts[1:] else parts)


def _memory(fitted: Fit) -> list[str]:
    found = []
    for room in fitted.rooms:
        found += _on_node(fitted, room)
    found += _for_a_request(fitted)
    return found


def _on_node(fitted: Fit, room: NodeMemory) -> list[str]:
    """Return what a node has too little of, the first reason only."""
    held = f"; {room.held_gib:.1f} GiB are held by {_names(room)}" if room.held else ""
    reserved = fitted.reserved_gib if fitted.share is None else fitted.share * room.total_gib
    margins = memory_share.margins(room.memory)
    gate = memory_share.gate_gib(room.memory)
    if fitted.loading_gib + margins.reserve_gib > room.available_gib:
        how = " while loading" if fitted.loading_gib > fitted.weights_gib else ""
        kept = margins.reserve_gib
        keeps = f", of which the system keeps {kept:g}" if kept else ""
        return [
            f"{room.name}: the weights take {fitted.loading_gib:.1f} GiB{how}, and "
            f"{room.available_gib:.1f} are available{keeps}{held}"
        ]
    if fitted.peak_gib + margins.reserve_gib > room.available_gib:
        return [
            f"{room.name}: profiling CUDA graphs takes {fitted.peak_gib:.1f} GiB for some seconds "
            f"({sequences(fitted.launch, fitted.rooms)} sequences), and {room.available_gib:.1f} "
            f"are available; lower --max-num-seqs{held}"
        ]
    if reserved > gate:
        return [
            f"{room.name}: {reserved:.1f} GiB are requested and vLLM would see {gate:.1f} free, so "
            f"it would not start{held}"
        ]
    if reserved > memory_share.safe_gib(room.memory):
        left = room.available_gib - reserved - margins.outside_gib
        end = (
            f"would leave {max(left, 0):.1f} for everything else; below {margins.reserve_gib:g} a "
            "Spark stops answering"
        )
        if room.memory.of_gpu:
            end = f"are {-left:.1f} too much"
        return [
            f"{room.name}: {reserved:.1f} of {room.available_gib:.1f} GiB available, and "
            f"{margins.outside_gib:g} that vLLM takes in addition, {end}{held}"
        ]
    return []


def _for_a_request(fitted: Fit) -> list[str]:
    cache = fitted.cache
    if cache is None:
        room = min(fitted.rooms, key=lambda r: r.available_gib)
        return [
            f"{fitted.weights_gib + fitted.runtime_gib:.1f} GiB for weights and runtime leave "
            f"no room for a KV cache on {room.name}"
        ]
    if cache.max_concurrency < 1:
        return [
            f"a request of {fitted.max_model_len:,} tokens needs {cache.gib_per_request:.2f} GiB "
            f"of KV cache and there are {fitted.kv_gib:.2f}; the longest that fits has "
            f"{cache.max_model_len:,} tokens"
        ]
    if cache.gib_per_request > fitted.kv_low_gib and fitted.kv_low_gib < fitted.kv_gib:
        least = _cache(fitted.launch, fitted.serving, fitted.kv_low_gib)
        longest = least.max_model_len if least else 0
        return [
            f"a request of {fitted.max_model_len:,} tokens needs {cache.gib_per_request:.2f} GiB "
            f"of KV cache and there may be as little as {fitted.kv_low_gib:.2f} "
            f"({fitted.kv_gib:.2f} expected); {longest:,} tokens fit in any case"
        ]
    return []


def _disk(fitted: Fit) -> list[str]:
    """Say which nodes have too little space for a download."""
    return [
        f"{room.name}: {fitted.disk_gib:.0f} GiB must be downloaded and {room.disk_free_gib:.0f} "
        "GiB are free on its disk"
        for room in fitted.rooms
        if room.disk_free_gib is not None
        and not room.has_model
        and fitted.disk_gib > room.disk_free_gib
    ]


def _remarks(fitted: Fit) -> list[str]:
    found = []
    for room in fitted.rooms:
        cached = room.memory.cached_kib / memory_share.GIB_KIB
        if cached >= 1:
            dropped = f"{cached:.1f} GiB of page cache are dropped before the start"
            found.append(f"{room.name}: {dropped}")
    found += _drafter_remarks(fitted)
    found += _engine_remarks(fitted.serving)
    found += _parallel_remarks(fitted)
    if fitted.launch.on_cpu:
        found.append(
            "it is made for the CPU build of vLLM, and the speeds are those of a Spark's GPU"
        )
    found += _other_gpus(fitted)
    skipped = fitted.launch.args.get("kv-cache-dtype-skip-layers")
    if skipped and fitted.serving.kv_dtype not in ("auto", "bfloat16", "float16"):
        found.append(
            "layers of --kv-cache-dtype-skip-layers stay in 16 bits, which is not counted: the "
            "cache holds less than this"
        )
    if fitted.share is None:
        return found
    if fitted.launch.number("gpu-memory-utilization") and fitted.share > fitted.highest:
        found.append(f"at most {fitted.highest:.2f} is safe here, and {fitted.share:g} is given")
    busy = any(r.held or r.total_gib - r.available_gib > BUSY_GIB for r in fitted.rooms)
    if busy and fitted.fits:
        found.append(
            f"other programs hold memory: with --kv-cache-memory-bytes {kv_knob_bytes(fitted)} "
            "vLLM does not measure what they leave"
        )
    return found


def _other_gpus(fitted: Fit) -> list[str]:
    """Say where the speeds are not those of the GPUs that there are."""
    names = sorted({room.gpu for room in fitted.rooms if room.memory.of_gpu})
    if not names:
        return []
    return [f"memory is that of {' and '.join(names)}; the speeds are those of a Spark's GPU"]


def _drafter(launch: Launch, geometry: Geometry) -> DrafterLayers:
    """Return the layers of its drafter that keep a cache."""
    return drafter_layers(geometry, launch.speculative, launch.model)


def _drafter_remarks(fitted: Fit) -> list[str]:
    """What a drafter may take of the cache that is counted for the model, or add to it."""
    layers = "the KV cache of the drafter's own layers is not counted: somewhat fewer tokens fit"
    found = [] if _drafter(fitted.launch, fitted.serving.geometry).known else [layers]
    if fitted.share is not None and may_give_back(fitted.launch, fitted.rooms):
        found.append(
            "with fastsafetensors and MTP vLLM before 0.27 made the cache up to 36 GiB larger than "
            "the share leaves: VLLM_MEMORY_PROFILER_ESTIMATE_CUDAGRAPHS=0 prevents it"
        )
    return found


def _engine_remarks(serving: ServingSetup) -> list[str]:
    """Say where figures are carried over from vLLM to another engine."""
    if serving.dialect.planned:
        return []
    return [
        f"{serving.dialect.title} is experimental here: memory other than weights, KV cache and "
        "speeds are computed as for vLLM, so their ranges are wider"
    ]


def _parallel_remarks(fitted: Fit) -> list[str]:
    """Say which layout the figures are for."""
    launch, found = fitted.launch, []
    if launch.pp > 1:
        found.append(
            f"{launch.pp} pipeline stages: memory is that of the largest one, and a request's "
            "speed that of one node after the other, without what several requests overlap"
        )
    if launch.dp > 1:
        found.append(ranks_remark(launch, fitted.serving.geometry))
    return found


def kv_knob_bytes(fitted: Fit) -> int:
    """The cache's size as --kv-cache-memory-bytes, rounded down to 64 MiB.

    The better knob where memory moves while vLLM profiles it (a desktop, another program, page
    cache): it takes the cache's size as given, and profiles nothing.
    """
    return math.floor(fitted.kv_gib * 16) * 64 * 1024**2


def _names(room: NodeMemory) -> str:
    return ", ".join(sorted({f"{p.name} (pid {p.pid})" for p in room.held}))
