"""The pages of each kind of layer in vLLM's KV cache: their size, and how many a request needs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from spark_cluster.errors import UsageError
from spark_cluster.models.shape import Attention, Latent, Recurrent
from spark_cluster.plan.kv_layout import (
    DS_MLA_BYTES,
    FLASHINFER_GDN_ALIGNMENT,
    INDEX_BLOCK,
    NO_DRAFTER,
    NVFP4,
    SPARSE_PAGE,
    TURBOQUANT,
    KvLayout,
    ceil,
    element,
    not_known,
    state_bytes,
)
from spark_cluster.plan.kv_rules import LOGGED

# The cache of each kind of layer: the size of its page, how many a request needs, and the pool of
# blocks that the kinds share.


@dataclass(frozen=True)
class Pages:
    """Layers of one kind in vLLM's cache.

    Attributes:
        block: tokens of one block.
        page: bytes of one block in one layer.
        window: tokens that are seen, for `sliding` and `chunked`.
        fixed: pages a request, for `state` and `ring`, the keys of an indexer that are not pooled
            yet; None: one for each block of tokens, and `more`.
        replicated: states that each GPU holds whole.
        aligned: bytes of which the distance of packed blocks is a multiple.
    """

    kind: Literal["full", "latent", "sliding", "chunked", "state", "ring"]
    layers: int
    block: int
    page: int
    window: int = 0
    fixed: int | None = None
    more: int = 0
    replicated: bool = False
    aligned: int = 1

    def needed(self, length: int, in_flight: int) -> int:
        """Blocks that a request of that many tokens needs at most, in one group of such layers.

        Args:
            in_flight: tokens that may be scheduled but not settled at once.
        """
        if self.kind == "sliding":
            tokens = min(self.window - 1 + in_flight, length)
            return ceil(tokens, self.block) + 1  # a window need not begin where a block does
        if self.kind == "chunked":
            return ceil(min(self.window + in_flight, length), self.block)
        if self.fixed is not None:
            return self.fixed
        return ceil(length, self.block) + self.more


def pages(cut: KvLayout) -> list[Pages]:
    """The layers that keep a cache, kind by kind.

    Raises:
        UsageError: the model cannot be divided by the tensor-parallel size, or vLLM's rule for its
            cache is not known here.
    """
    if why := not_known(cut.geometry, cut.kv_dtype):
        raise UsageError(
            f"how vLLM lays out the KV cache of {cut.geometry.name} is not known here: {why}",
            hint="vLLM prints it at the start: 'GPU KV cache size'",
        )
    if cut.element.name in TURBOQUANT["types"]:
        _must_take_turboquant(cut)
    if logged := logged_cache(cut):
        return [Pages("latent", 1, logged["block"], logged["block"] * logged["bytes_per_token"])]
    attention = [*_attention(cut), *_latent(cut)]
    if cut.drafter.attention or cut.drafter.latent:
        attention = together([*attention, *_drafter(cut)])
    if not cut.geometry.recurrent:
        return attention
    states = [_state(cut, part) for part in cut.geometry.recurrent]
    return [*_lengthened(cut, attention, states), *_padded(cut, attention, states)]


def logged_cache(cut: KvLayout) -> dict[str, int] | None:
    found: dict[str, int] | None = LOGGED.get(cut.geometry.model_type)
    old = cut.rule.compressed == "logged"
    return found if old or cut.kv_dtype.lower().startswith(NVFP4) else None


def together(parts: list[Pages]) -> list[Pages]:
    """Kinds that are alike in all but the number of layers, as one."""
    found = Counter[Pages]()
    for part in parts:
        found[replace(part, layers=0)] += part.layers
    return [replace(part, layers=count) for part, count in found.items()]


def _drafter(cut: KvLayout) -> Iterator[Pages]:
    yield from _attention(
        replace(cut, geometry=replace(cut.geometry, attention=cut.drafter.attention))
    )
    if cut.drafter.latent and cut.geometry.latent:
        latent = replace(cut.geometry.latent, layers=cut.drafter.latent, compressed=())
        yield from _latent(replace(cut, geometry=replace(cut.geometry, latent=latent)))


def _attention(cut: KvLayout) -> Iterator[Pages]:
    for part in cut.geometry.attention:
        layers = part.layers - part.borrowed
        if layers < 1:
            continue
        if cut.element.name in TURBOQUANT["types"]:
            yield from _turboquant(cut, part, layers)
            continue
        block = _sliding_block(cut) if part.kind == "sliding" else cut.block
        if part.index_dim and part.pooled == 1:
            block = INDEX_BLOCK * ceil(block, INDEX_BLOCK)
        page = block * heads_each(part, cut.tp) * cut.element.slot(part.head_dim, part.value_dim)
        yield Pages(part.kind, layers, block, page, part.window or 0)
        if part.index_dim:  # in 16 bits
            kept = layers if part.index_layers is None else part.index_layers
            own = replace(cut, block_size=block)
            yield from _index_keys(own, kept, 2 * part.index_dim, part.pooled)


def _index_keys(cut: KvLayout, layers: int, width: int, pooled: int) -> Iterator[Pages]:
    """Yield the keys of an indexer, of which several tokens may share one.

    The keys of tokens that have no shared one yet are in a ring, one block a request; its page is
    the smallest of all, so only its number of layers matters.
    """
    of_kernel = pooled > 1 and cut.geometry.latent and cut.rule.whole_kernels
    aligned = SPARSE_PAGE * width if of_kernel else 1
    yield Pages("latent", layers, cut.block, width * cut.block // pooled, aligned=aligned)
    if pooled > 1:
        yield Pages("ring", layers, pooled, 1, fixed=1)


def _turboquant(cut: KvLayout, part: Attention, layers: int) -> Iterator[Pages]:
    """Layers whose keys and values are packed, and those at both ends that are as the model."""
    heads = heads_each(part, cut.tp)
    packed = heads * cut.element.slot(part.head_dim, part.value_dim)
    own = heads * element("auto", cut.geometry).slot(part.head_dim, part.value_dim)
    ends = 0 if cut.geometry.recurrent else 2 * min(TURBOQUANT["kept"], layers // 2)
    block = cut.block
    if ends and cut.rule.turboquant == "covering":
        block *= ceil(own * cut.kernel, block * packed)
    for count, width in ((layers - ends, packed), (ends, own)):
        if count:
            yield Pages("full", count, block, block * width)


def _must_take_turboquant(cut: KvLayout) -> None:
    """Raise UsageError where this vLLM has no such cache, or what a drafter adds is not known."""
    hybrid, name = bool(cut.geometry.recurrent), cut.element.name
    if cut.drafter != NO_DRAFTER and not hybrid:
        raise UsageError(
            f"how vLLM keeps a drafter's layers in a {name} KV cache is not known here",
            hint="vLLM prints it at the start: 'GPU KV cache size'; --kv-cache-dtype fp8 is known",
        )
    if cut.rule.turboquant == "none" or (hybrid and cut.rule.turboquant == "attention"):
        raise UsageError(
            f"vLLM {cut.vllm} has no {name} KV cache for {cut.geometry.name}",
            hint=f"vLLM {'0.21.0' if hybrid else '0.20.0'} and newer do; or --kv-cache-dtype fp8",
        )


def _sliding_block(cut: KvLayout) -> int:
    if cut.rule.sliding_block == "asked":
        return cut.block
    if cut.rule.sliding_block == "smallest":
        return cut.kernel
    return max(cut.kernel, cut.block // cut.kernel * cut.kernel)


def heads_each(part: Attention, tp: int) -> int:
    """KV heads on each GPU; with fewer heads than GPUs they are replicated.

    Raises:
        UsageError: it cannot be divided.
    """
    if part.q_heads % tp:
        raise UsageError(
            f"{part.q_heads} attention heads cannot be divided among {tp} GPUs",
            hint=f"take a tensor-parallel size that divides {part.q_heads}",
        )
    if max(part.kv_heads, tp) % min(part.kv_heads, tp):
        raise UsageError(f"{part.kv_heads} key-value heads cannot be shared by {tp} GPUs")
    return max(1, part.kv_heads // tp)


def _latent(cut: KvLayout) -> Iterator[Pages]:
    """Yield one vector a token for all heads: every GPU holds it in full."""
    part: Latent | None = cut.geometry.latent
    if part is None:
        return
    if part.window:
        yield from _compressed(cut, part)
        return
    own = cut.element.width(part.rank + part.rope_dim)
    width = DS_MLA_BYTES.get(cut.element.name, own)
    aligned = SPARSE_PAGE * width if part.pooled > 1 and cut.rule.whole_kernels else 1
    yield Pages("latent", part.layers, cut.block, cut.block * width, aligned=aligned)
    layers = part.layers if part.index_layers is None else part.index_layers
    if part.index_dim and layers:  # keys in fp8 and a scale of 4 bytes for 128 of them
        indexed = part.index_dim + 4 * ceil(part.index_dim, 128)
        yield from _index_keys(cut, layers, indexed, part.pooled)


# DeepSeek V4 and V4.1: vectors for several tokens, index keys for some of them, the vectors of a
# window, and what is not compressed yet (`compressor.py` and `attention.py` in vLLM's
# `models/deepseek_v4` and `models/deepseek_v41`, with FlashInfer's kernel for a Spark).

RECORD, STRIDE = 584, 576
"""Bytes of a vector (448 elements in FP8, 64 in 16 bits, 8 bytes of scales), and those of which a
page is a multiple."""

OVERLAPPING = 4
"""Tokens a vector of V4's layers with an indexer, whose groups of tokens overlap."""


def _compressed(cut: KvLayout, part: Latent) -> Iterator[Pages]:
    least, own = (128, 32) if part.shared else (256, 64)
    block = least * ceil(cut.block, least)
    for tokens, layers in part.compressed:
        kept = block // tokens
        yield Pages("latent", layers, block, _strided(kept * RECORD))
        if part.shared or tokens == OVERLAPPING:
            indexed = part.index_dim + 4 * ceil(part.index_dim, 128)
            yield Pages("latent", layers, block, _strided(kept * indexed))
        if part.shared and tokens > 1:
            yield Pages("ring", layers, tokens, 1, fixed=1)
        if not part.shared:
            yield from _uncompressed(part, tokens, layers)
    yield Pages("sliding", part.layers, own, _strided(own * RECORD), part.window)


def _uncompressed(part: Latent, tokens: int, layers: int) -> Iterator[Pages]:
    """Yield values and scores in float32, of the layer itself and of its indexer."""
    overlaps = tokens == OVERLAPPING
    block, times = (4, 2) if overlaps else (8, 1)
    for width in (part.value_dim, part.index_dim) if overlaps else (part.value_dim,):
        page = _strided(block * 4 * 2 * times * width)
        yield Pages("sliding", layers, block, page, times * tokens)


def _strided(size: int) -> int:
    return ceil(size, STRIDE) * STRIDE


def _state(cut: KvLayout, part: Recurrent) -> Pages:
    conv, tp = part.conv_elements, 1 if part.replicated else cut.tp
    if part.groups and part.groups % cut.tp:  # each GPU has the groups that its heads need
        conv += (cut.tp - part.groups) * part.group_elements
    if conv % tp or part.state_elements % tp:
        raise UsageError(f"the recurrent layers cannot be divided among {cut.tp} GPUs")
    if part.conv_width:
        conv = conv // part.conv_width * (part.conv_width + cut.drafted_tokens)
    asked = part.state_dtype if cut.state_dtype in (None, "auto") else cut.state_dtype
    size = conv // tp * state_bytes(None, cut.geometry)
    size += (
        part.state_elements // tp * state_bytes("float32" if cut.on_cpu else asked, cut.geometry)
    )
    kept, alone = _kept(cut, part), part.replicated
    return Pages("state", part.layers, cut.block, size, fixed=kept, replicated=alone)


def _kept(cut: KvLayout, part: Recurrent) -> int:
    """States that one request keeps, unless there is one for each block."""
    if cut.mode == "none":
        return 1 + cut.drafted_tokens
    checkpoint = (part.kind in cut.rule.checkpoints and part.exports) or cut.gdn_checkpoints
    return 2 + cut.drafted_tokens + int(checkpoint)


def _block(cut: KvLayout, attention: list[Pages], states: list[Pages]) -> int:
    """Tokens of a block long enough that its page of attention holds a state."""
    state = max(part.page for part in states)
    a_token = max(part.page // part.block for part in attention)
    step = max(cut.kernel, cut.block) if cut.rule.block_alignment else cut.kernel
    if cut.geometry.latent:
        step = max(step, cut.rule.latent_alignment)
    if cut.gdn_checkpoints:
        step = math.lcm(step, FLASHINFER_GDN_ALIGNMENT)
    if cut.mode == "all":
        step = math.lcm(step, max(part.chunk for part in cut.geometry.recurrent) or 1)
    pooled = cut.geometry.latent.pooled if cut.geometry.latent else 1
    whole = pooled * SPARSE_PAGE if pooled > 1 else 1
    return whole * ceil(max(cut.block, step * ceil(state, step * a_token)), whole)


def _lengthened(cut: KvLayout, attention: list[Pages], states: list[Pages]) -> list[Pages]:
    if not attention:
        return []
    block = _block(cut, attention, states)
    return [
        part if part.fixed else replace(part, block=block, page=part.page * block // part.block)
        for part in attention
    ]


def _padded(cut: KvLayout, attention: list[Pages], states: list[Pages]) -> list[Pages]:
    """States in pages as large as those of attention."""
    if not attention:
        return states
    block = _block(cut, attention, states)
    page = block * max(part.page // part.block for part in attention)
    if cut.mode == "all":
        more = cut.drafted_tokens if cut.rule.speculative_states else 0
        return [replace(part, block=block, page=page, fixed=None, more=more) for part in states]
    return [replace(part, block=block, page=page) for part in states]
