"""The KV cache arithmetic of vLLM, version by version: how much context fits."""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass, replace
from typing import Annotated

from spark_cluster.config.schema import Hidden, Rounded
from spark_cluster.errors import UsageError
from spark_cluster.plan.kv_layout import KvLayout, ceil
from spark_cluster.plan.kv_pages import Pages, logged_cache, pages, together
from spark_cluster.plan.kv_rules import Rule, for_version


@dataclass(frozen=True)
class Pool:
    """Blocks that all groups of layers draw from.

    Attributes:
        kinds: each kind of layer with the number of its groups.
        block_bytes: of one block on one GPU.
        in_flight: tokens that may be scheduled but not settled at once.
        dcp: GPUs that share out the tokens of full and latent attention.
        checked: bytes that vLLM takes for a block where it looks for the longest request; None: as
            many as it has.
    """

    kinds: tuple[tuple[Pages, int], ...]
    block_bytes: int
    in_flight: int
    dcp: int = 1
    checked: int | None = None

    @property
    def groups(self) -> int:
        return sum(count for _, count in self.kinds)

    @property
    def smallest_block(self) -> int:
        """Tokens of the shortest block."""
        return min(part.block for part, _ in self.kinds if part.kind != "ring")

    def needed(self, length: int) -> int:
        """Blocks that a request of that many tokens needs at most.

        Raises:
            UsageError: it has none.
        """
        if length < 1:
            raise UsageError(f"--max-model-len should be at least 1, found {length}")
        return sum(count * self._of(part, length) for part, count in self.kinds)

    def _of(self, part: Pages, length: int) -> int:
        """Blocks of one group of layers; windows and states are not shared out."""
        shared = part.kind in ("full", "latent") and part.fixed is None
        own = ceil(length, self.dcp) if shared else length
        return part.needed(own, self.in_flight)


def pool(layout: KvLayout) -> Pool:
    """The pool of a model.

    Layers of one kind are one group, whatever their sizes. Different kinds get pages of one size
    (the smaller ones longer blocks), and each is split into groups of as many layers as the
    rarest kind has.

    Raises:
        UsageError: it keeps no cache, or the pages cannot be made alike.
    """
    parts, rule = pages(layout), layout.rule
    if not parts:
        raise UsageError(f"{layout.geometry.name} keeps no KV cache of its own")
    compressed = layout.geometry.latent and layout.geometry.latent.window
    if any(part.kind == "ring" for part in parts) or (compressed and not logged_cache(layout)):
        return _packed(parts, layout)
    if len({_uniform(part) for part in parts}) == 1:
        size = sum(part.layers * part.page for part in parts)
        return Pool(((parts[0], 1),), size, layout.in_flight, layout.dcp)
    alike = together(_one_size(parts, rule))
    fewest = min(part.layers for part in alike)
    most = max(part.layers for part in alike)
    size = most if most < fewest * rule.padding_limit else fewest
    kinds = tuple((part, ceil(part.layers, size)) for part in alike)
    return Pool(kinds, size * alike[0].page, layout.in_flight, layout.dcp)


def _uniform(part: Pages) -> tuple[object, ...]:
    """Kinds that need the same number of blocks for the same tokens are alike."""
    kind = "full" if part.kind == "latent" else part.kind
    return (kind, part.block, part.window, part.fixed, part.more, part.replicated)


# Pages of several sizes in one block (vLLM: `_get_packed_kv_cache_groups`): the layout of models
# whose indexers keep pooled keys.


@dataclass(frozen=True)
class _Bucket:
    """Kinds of which a request needs as many blocks, whatever the sizes of their pages."""

    parts: tuple[Pages, ...]

    @property
    def repeats(self) -> int:
        return max(part.layers for part in self.parts)

    @property
    def balanced(self) -> bool:
        return len({part.layers for part in self.parts}) == 1

    def widest(self, groups: int) -> int:
        """Bytes of the largest of so many groups."""
        return sum(ceil(part.layers, groups) * part.page for part in self.parts)


def _packed(parts: list[Pages], layout: KvLayout) -> Pool:
    alike: dict[tuple[object, ...], list[Pages]] = {}
    for part in parts:
        alike.setdefault(_uniform(part), []).append(part)
    buckets = [_Bucket(tuple(_of_one_page(same))) for same in alike.values()]
    even = [one for one in buckets if one.balanced]
    floor = max((one.repeats for one in even if len(one.parts) > 1), default=0)
    each = _repeats([one.repeats for one in even], floor) if floor else 0
    split = [ceil(one.repeats, each) if one.balanced and each else 1 for one in buckets]
    state = [_is_state(one.parts[0], split_up=each > 0) for one in buckets]
    rows = [*zip(buckets, split, state, strict=True)]
    room = max(one.widest(one.repeats if kept else count) for one, count, kept in rows)
    groups = [
        max(count, ceil(one.repeats, max(1, room // one.parts[0].page))) if kept else count
        for one, count, kept in rows
    ]
    size = max(one.widest(count) for one, count in zip(buckets, groups, strict=True))
    step = math.lcm(*(part.aligned for part in parts))
    kinds = tuple((one.parts[0], count) for one, count in zip(buckets, groups, strict=True))
    checked = None
    if layout.rule.compressed == "tuples":
        most = max(ceil(one.repeats, count) for one, count in zip(buckets, groups, strict=True))
        checked = most * sum(part.page for part in buckets[0].parts)
    return Pool(kinds, ceil(size, step) * step, layout.in_flight, layout.dcp, checked)


def _of_one_page(parts: list[Pages]) -> list[Pages]:
    """Kinds with pages of one size as one, whatever the distance of their blocks."""
    return together([replace(part, kind=parts[0].kind, aligned=1) for part in parts])


def _is_state(part: Pages, *, split_up: bool) -> bool:
    """Return whether a bucket's groups may have any number of layers, down to one."""
    return part.kind in ("state", "ring") or (part.kind == "sliding" and not split_up)


def _repeats(counts: list[int], floor: int) -> int:
    """Return the number of layers a group that leaves the fewest places empty, the largest of those
    (vLLM: `_approximate_gcd`).
    """
    return min(
        range(floor, max(counts) + 1), key=lambda each: (sum(-n % each for n in counts), -each)
    )


def _one_size(parts: list[Pages], rule: Rule) -> list[Pages]:
    largest = max(part.page for part in parts)
    found = []
    for part in parts:
        if largest % part.page == 0 and part.kind != "state":
            found.append(replace(part, block=part.block * (largest // part.page), page=largest))
        elif part.kind == "state" or (rule.pads_attention and part.kind != "latent"):
            found.append(replace(part, page=largest))
        else:
            raise UsageError(
                f"vLLM {rule.since} cannot serve this model with such a KV cache: a page of "
                f"{part.page} bytes does not divide one of {largest}",
                hint="0.24 and newer pad it; or take another KV cache type",
            )
    return found


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
    shared = pool(layout)
    needed = shared.needed(max_model_len)
    if shared.block_bytes <= 0 or needed <= 0:
        raise UsageError(f"{layout.geometry.name} has no layers with a KV cache, by its config")
    blocks = size // shared.block_bytes
    concurrency = blocks / needed
    if layout.rule.printed == "pool":
        tokens = blocks // shared.groups * shared.smallest_block
    else:
        tokens = int(concurrency * max_model_len)
    usable = size // (shared.checked or shared.block_bytes) - int(layout.rule.null_block)
    lengths = range(1, (layout.geometry.max_positions or max_model_len) + 1)
    unit = _unit(layout)
    return KvCache(
        blocks=blocks * unit,
        blocks_per_request=needed * unit,
        tokens=tokens,
        max_concurrency=concurrency,
        gib_per_request=needed * shared.block_bytes / GIB,
        max_model_len=bisect_right(lengths, usable, key=shared.needed),
        rule=_words(layout),
        block_size=shared.smallest_block,
    )


def _words(layout: KvLayout) -> str:
    """Which rule the figures follow, and what it assumes."""
    if logged := logged_cache(layout):
        return f"at most what servers logged for a token: {logged['bytes_per_token']:,} bytes"
    words = for_version(layout.vllm)[1]
    if layout.gdn_checkpoints and not layout.gdn_prefill:
        return f"{words}; {FLASHINFER_ASSUMED}"
    return words


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
