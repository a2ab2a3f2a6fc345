"""The KV cache arithmetic of vLLM, version by version: how much context fits."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Annotated, Literal, TypedDict, Unpack

from spark_cluster.document import Hidden, Rounded
from spark_cluster.errors import UsageError
from spark_cluster.models.shape import Geometry
from spark_cluster.planning.kv.dtypes import element
from spark_cluster.planning.kv.layers import (
    NO_DRAFTER,
    DrafterLayers,
    KvDemand,
    KvLayout,
    Pool,
    pages,
    pool,
)
from spark_cluster.planning.kv.rules import Rule, for_version

__all__ = [
    "KvCache",
    "Options",
    "Rule",
    "bytes_for",
    "cache",
    "for_version",
]


# A KV cache of a given size: what vLLM prints for it, and the other way round.

GIB = 1024**3
BLOCK = 16
"""vLLM's default block, tokens (`CacheConfig.DEFAULT_BLOCK_SIZE`)."""

FLASHINFER_ASSUMED = (
    "FlashInfer's GDN prefill is assumed, which keeps one more state a request (the log says "
    '"Using ... GDN prefill kernel")'
)


class Options(TypedDict, total=False):
    """The options with which the server is started.

    kv_dtype: `--kv-cache-dtype` (default `auto`).
    max_num_batched_tokens: default 2048.
    tp: tensor-parallel size (default 1).
    vllm: its version; without one the newest rule.
    block_size: `--block-size` (default 16).
    prefix_caching: None: the version's default, which matters for recurrent layers only.
    mamba_cache_mode: `align`, `all` or `none`; None: what vLLM takes for prefix caching.
    drafted_tokens: of speculative decoding, for recurrent layers (default 0).
    drafter: the layers of a drafter with a cache of its own (default none).
    gdn_prefill: the kernel that runs the prefill of gated delta nets, as the log's "Using ... GDN
        prefill kernel" names it: `flashinfer` or another, such as `triton`. None: what vLLM takes
        by itself on a GPU with CUDA 13, `flashinfer` (Hopper and Blackwell, so also a Spark).
    async_scheduling: the next batch is scheduled while one runs, vLLM's default on GPUs.
    device: `gpu` (default) or `cpu`, where the same version has other kernels, float32 states of
        GDN layers and no async scheduling.
    """

    kv_dtype: str
    max_num_batched_tokens: int
    tp: int
    vllm: str | None
    block_size: int | None
    prefix_caching: bool | None
    mamba_cache_mode: str | None
    drafted_tokens: int
    drafter: DrafterLayers
    gdn_prefill: str | None
    async_scheduling: bool
    device: Literal["gpu", "cpu"]


@dataclass(frozen=True)
class KvCache:
    """The KV cache as a server's log describes it, figures of one GPU.

    Attributes:
        blocks: in the pool, counted in blocks of `--block-size`. Where vLLM takes longer ones
            because a CPU's kernels want them, one of its blocks counts as several.
        blocks_per_request: that a request of full length needs.
        tokens: as "KV cache size" in the log.
        max_concurrency: requests of full length at once.
        gib_per_request: that such a request takes, GiB a GPU.
        max_model_len: the longest request that fits, tokens; at most what the model was made for.
        rule: which version's arithmetic it is.
        block_size: tokens of the shortest block, after alignment.
    """

    blocks: int
    blocks_per_request: int
    tokens: int
    max_concurrency: Annotated[float, Rounded(2)]
    gib_per_request: Annotated[float, Rounded(4)]
    max_model_len: int
    rule: str
    block_size: Hidden[int]


def cache(
    geometry: Geometry,
    *,
    max_model_len: int,
    kv_gib: float | None = None,
    kv_bytes: int | None = None,
    **options: Unpack[Options],
) -> KvCache:
    """Compute what a cache of that size holds.

    Args:
        max_model_len: `--max-model-len`, tokens.
        kv_gib: size of the cache on each GPU, GiB; or `kv_bytes`.

    Raises:
        UsageError: a value is out of its range, or the model cannot be laid out like this.
    """
    if (kv_gib is None) == (kv_bytes is None):
        raise UsageError("give the cache's size once: in GiB or in bytes")
    size = int(kv_gib * GIB) if kv_gib is not None else int(kv_bytes or 0)
    if size <= 0:
        raise UsageError(f"a KV cache of {size} bytes holds nothing")
    rule, words = for_version(options.get("vllm"))
    layout = _layout(geometry, rule, options)
    if layout.gdn_checkpoints and not options.get("gdn_prefill"):
        words += f"; {FLASHINFER_ASSUMED}"
    shared = _pool(layout)
    needed = shared.needed(_wanted(max_model_len, rule, options))
    if shared.block_bytes <= 0 or needed <= 0:
        raise UsageError(f"{geometry.name} has no layers with a KV cache, by its config")
    blocks = size // shared.block_bytes
    concurrency = blocks / needed
    if rule.printed == "pool":
        tokens = blocks // shared.groups * shared.smallest_block
    else:
        tokens = int(concurrency * max_model_len)
    usable = blocks - 1 if rule.null_block else blocks
    lengths = range(1, (geometry.max_positions or max_model_len) + 1)
    longest = bisect_right(
        lengths, usable, key=lambda length: shared.needed(_wanted(length, rule, options))
    )
    unit = _unit(layout)
    return KvCache(
        blocks=blocks * unit,
        blocks_per_request=needed * unit,
        tokens=tokens,
        max_concurrency=concurrency,
        gib_per_request=needed * shared.block_bytes / GIB,
        max_model_len=longest,
        rule=words,
        block_size=shared.smallest_block,
    )


def bytes_for(geometry: Geometry, requests: int, length: int, **options: Unpack[Options]) -> int:
    """The bytes on each GPU that hold that many requests of that length, whole blocks.

    Raises:
        UsageError: as `cache`.
    """
    if requests < 1:
        raise UsageError(f"the number of requests should be at least 1, found {requests}")
    rule, _ = for_version(options.get("vllm"))
    shared = _pool(_layout(geometry, rule, options))
    spare = 1 if rule.null_block else 0
    needed = shared.needed(_wanted(length, rule, options))
    return (requests * needed + spare) * shared.block_bytes


def _wanted(length: int, rule: Rule, options: Options) -> KvDemand:
    if length < 1:
        raise UsageError(f"--max-model-len should be at least 1, found {length}")
    batched = options.get("max_num_batched_tokens", 2048)
    if batched < 1:
        raise UsageError(f"--max-num-batched-tokens should be at least 1, found {batched}")
    overlapping = options.get("async_scheduling", True) and options.get("device") != "cpu"
    return KvDemand(length, (2 if rule.in_flight and overlapping else 1) * batched)


def _pool(layout: KvLayout) -> Pool:
    parts = pages(layout)
    if not parts:
        raise UsageError(f"{layout.geometry.name} keeps no KV cache of its own")
    return pool(parts, layout.rule)


def _layout(geometry: Geometry, rule: Rule, options: Options) -> KvLayout:
    tp = options.get("tp", 1)
    if tp < 1:
        raise UsageError(f"the tensor-parallel size should be at least 1, found {tp}")
    block = options.get("block_size") or BLOCK
    if block < 1:
        raise UsageError(f"--block-size should be at least 1, found {block}")
    kv_dtype = options.get("kv_dtype", "auto")
    on_cpu = options.get("device") == "cpu"
    prefill = options.get("gdn_prefill") or "flashinfer"
    return KvLayout(
        geometry=geometry,
        element=element(kv_dtype, geometry, latent=geometry.latent is not None),
        tp=tp,
        block=block,
        kernel=rule.cpu_kernel if on_cpu else BLOCK,  # Triton and FlashAttention do 16
        rule=rule,
        mode=_mode(rule, options),
        drafted=options.get("drafted_tokens", 0),
        drafter=options.get("drafter", NO_DRAFTER),
        flashinfer_gdn=not on_cpu and prefill == "flashinfer",
        float_states=on_cpu,
    )


def _unit(layout: KvLayout) -> int:
    """Return how many blocks of the requested size one block counts as."""
    sliding = any(part.kind == "sliding" for part in layout.geometry.attention)
    if not sliding or layout.rule.sliding_block == "asked":
        return 1
    return max(1, layout.kernel // layout.block)


def _mode(rule: Rule, options: Options) -> str:
    """Mamba's cache mode."""
    caching = options.get("prefix_caching")
    caching = rule.hybrid_prefix_caching if caching is None else caching
    mode = options.get("mamba_cache_mode") or ("align" if caching else "none")
    known = ("none", "align", "all") if rule.all_mode else ("none", "align")
    if mode not in known:
        raise UsageError(
            f"vLLM has no --mamba-cache-mode {mode!r}", hint=f"known are: {', '.join(known)}"
        )
    return mode
