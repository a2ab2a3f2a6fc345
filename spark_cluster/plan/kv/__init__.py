"""The KV cache arithmetic of vLLM, version by version: how much context fits."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Annotated

from spark_cluster.config.schema import Hidden, Rounded
from spark_cluster.errors import UsageError
from spark_cluster.plan.kv.layers import KvLayout, pool
from spark_cluster.plan.kv.rules import Rule, for_version

__all__ = ["KvCache", "KvLayout", "Rule", "bytes_for", "cache", "for_version"]


# A KV cache of a given size: what vLLM prints for it, and the other way round.

GIB = 1024**3

FLASHINFER_ASSUMED = (
    "FlashInfer's GDN prefill is assumed, which keeps one more state a request (the log says "
    '"Using ... GDN prefill kernel")'
)


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


def cache(layout: KvLayout, size: int, max_model_len: int) -> KvCache:
    """Compute what a cache of that size holds.

    Args:
        size: of the cache on each GPU, bytes.
        max_model_len: `--max-model-len`, tokens.

    Raises:
        UsageError: a value is out of its range, or the model cannot be laid out like this.
    """

    if size <= 0:
        raise UsageError(f"a KV cache of {size} bytes holds nothing")
    rule, words = for_version(layout.vllm)
    if layout.gdn_checkpoints and not layout.gdn_prefill:
        words += f"; {FLASHINFER_ASSUMED}"
    shared = pool(layout)
    needed = shared.needed(max_model_len)
    if shared.block_bytes <= 0 or needed <= 0:
        raise UsageError(f"{layout.geometry.name} has no layers with a KV cache, by its config")
    blocks = size // shared.block_bytes
    concurrency = blocks / needed
    if rule.printed == "pool":
        tokens = blocks // shared.groups * shared.smallest_block
    else:
        tokens = int(concurrency * max_model_len)
    usable = blocks - 1 if rule.null_block else blocks
    lengths = range(1, (layout.geometry.max_positions or max_model_len) + 1)
    unit = _unit(layout)
    return KvCache(
        blocks=blocks * unit,
        blocks_per_request=needed * unit,
        tokens=tokens,
        max_concurrency=concurrency,
        gib_per_request=needed * shared.block_bytes / GIB,
        max_model_len=bisect_right(lengths, usable, key=shared.needed),
        rule=words,
        block_size=shared.smallest_block,
    )


def bytes_for(layout: KvLayout, requests: int, length: int) -> int:
    """The bytes on each GPU that hold that many requests of that length, whole blocks.

    Raises:
        UsageError: as `cache`.
    """

    if requests < 1:
        raise UsageError(f"the number of requests should be at least 1, found {requests}")
    shared = pool(layout)
    spare = 1 if layout.rule.null_block else 0
    return (requests * shared.needed(length) + spare) * shared.block_bytes


def _unit(layout: KvLayout) -> int:
    """Return how many blocks of the requested size one block counts as."""
    sliding = any(part.kind == "sliding" for part in layout.geometry.attention)
    if not sliding or layout.rule.sliding_block == "asked":
        return 1
    return max(1, layout.kernel // layout.block)
