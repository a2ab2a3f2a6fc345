"""A KV cache of a given size: what vLLM prints for it, and the other way round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TypedDict, Unpack

from spark_cluster.errors import UsageError
from spark_cluster.planning.geometry import Geometry
from spark_cluster.planning.kv.dtypes import element
from spark_cluster.planning.kv.groups import Pool, pool
from spark_cluster.planning.kv.layers import Cut, Wanted, pages
from spark_cluster.planning.kv.rules import Rule, for_version

GIB = 1024**3
BLOCK = 16
"""vLLM's default block, tokens (`CacheConfig.DEFAULT_BLOCK_SIZE`)."""


class Options(TypedDict, total=False):
    """How the server is started.

    kv_dtype: `--kv-cache-dtype` (default `auto`).
    max_num_batched_tokens: default 2048.
    tp: tensor-parallel size (default 1).
    vllm: its version; without one the newest rule.
    block_size: `--block-size` (default 16).
    prefix_caching: None: the version's default, which matters for recurrent layers only.
    mamba_cache_mode: `align`, `all` or `none`; None: what vLLM takes for prefix caching.
    batches_in_flight: 2 with async scheduling, see `rules.batches_in_flight` (default 1).
    drafted_tokens: of speculative decoding, for recurrent layers (default 0).
    """

    kv_dtype: str
    max_num_batched_tokens: int
    tp: int
    vllm: str | None
    block_size: int | None
    prefix_caching: bool | None
    mamba_cache_mode: str | None
    batches_in_flight: int
    drafted_tokens: int


@dataclass(frozen=True)
class KvCache:
    """What a server's log says about its cache, figures of one GPU.

    Attributes:
        blocks: in the pool.
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
    max_concurrency: float
    gib_per_request: float
    max_model_len: int
    rule: str
    block_size: int

    def document(self) -> dict[str, object]:
        """As in `--json`."""
        return asdict(self)


def cache(
    geometry: Geometry,
    *,
    max_model_len: int,
    kv_gib: float | None = None,
    kv_bytes: int | None = None,
    **options: Unpack[Options],
) -> KvCache:
    """What a cache of that size holds.

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
    shared = _pool(geometry, rule, max_model_len, options)
    wanted = _wanted(max_model_len, rule, options)
    blocks = size // shared.block_bytes
    needed = shared.needed(wanted)
    concurrency = blocks / needed
    if rule.printed == "pool":
        tokens = blocks // shared.groups * shared.smallest_block
    else:
        tokens = int(concurrency * max_model_len)
    usable = blocks - 1 if rule.null_block else blocks
    longest = _longest(
        lambda length: (
            _pool(geometry, rule, length, options).needed(_wanted(length, rule, options)) <= usable
        ),
        geometry.max_positions or max_model_len,
    )
    return KvCache(
        blocks=blocks,
        blocks_per_request=needed,
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
    shared = _pool(geometry, rule, length, options)
    spare = 1 if rule.null_block else 0
    needed = shared.needed(_wanted(length, rule, options))
    return (requests * needed + spare) * shared.block_bytes


def _wanted(length: int, rule: Rule, options: Options) -> Wanted:
    batched = options.get("max_num_batched_tokens", 2048)
    if batched < 1:
        raise UsageError(f"--max-num-batched-tokens should be at least 1, found {batched}")
    flying = options.get("batches_in_flight", 1) if rule.in_flight else 1
    return Wanted(length, flying * batched)


def _pool(geometry: Geometry, rule: Rule, length: int, options: Options) -> Pool:
    if length < 1:
        raise UsageError(f"--max-model-len should be at least 1, found {length}")
    tp = options.get("tp", 1)
    if tp < 1:
        raise UsageError(f"the tensor-parallel size should be at least 1, found {tp}")
    block = options.get("block_size") or BLOCK
    if block < 1:
        raise UsageError(f"--block-size should be at least 1, found {block}")
    drafted = options.get("drafted_tokens", 0)
    cut = Cut(
        geometry=geometry,
        element=element(
            options.get("kv_dtype", "auto"), geometry, latent=geometry.latent is not None
        ),
        tp=tp,
        block=block,
        rule=rule,
        states=_states(rule, options, drafted),
        drafted=drafted,
    )
    parts = pages(cut)
    if not parts:
        raise UsageError(f"{geometry.name} keeps no KV cache of its own")
    return pool(parts, rule)


def _states(rule: Rule, options: Options, drafted: int) -> int | None:
    """Pages of state a request keeps; None: one for each block of tokens."""
    caching = options.get("prefix_caching")
    caching = rule.hybrid_prefix_caching if caching is None else caching
    mode = options.get("mamba_cache_mode") or ("align" if caching else "none")
    if mode == "all" and rule.all_mode:
        return None
    if mode not in ("align", "all", "none"):
        raise UsageError(f"--mamba-cache-mode should be align, all or none, found {mode!r}")
    return (2 if mode == "align" else 1) + drafted


def _longest(fits: Callable[[int], bool], most: int) -> int:
    """The longest length that fits, by halving; 0 when nothing does."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if fits(middle):
            low = middle
        else:
            high = middle - 1
    return low
