"""What each kind of layer keeps: the size of its page, and how many a request needs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from spark_cluster.errors import UsageError
from spark_cluster.planning.geometry import Attention, Geometry, Latent, Recurrent
from spark_cluster.planning.kv.dtypes import FP8_DS_MLA, FP8_DS_MLA_BYTES, Element, state_bytes
from spark_cluster.planning.kv.rules import Rule


@dataclass(frozen=True)
class Wanted:
    """What a request may be, and how it is worked on.

    Attributes:
        length: tokens of the longest request.
        batched: tokens that may be scheduled but not settled at once.
    """

    length: int
    batched: int


@dataclass(frozen=True)
class Pages:
    """Layers of one kind in vLLM's cache.

    Attributes:
        block: tokens of one block.
        page: bytes of one block in one layer.
        window: tokens that are seen, for `sliding` and `chunked`.
        fixed: pages a request, for `state`; None: one for each block of tokens.
    """

    kind: Literal["full", "latent", "sliding", "chunked", "state"]
    layers: int
    block: int
    page: int
    window: int = 0
    fixed: int | None = None

    def needed(self, wanted: Wanted) -> int:
        """Blocks that one request of full length needs at most, in one group of such layers."""
        if self.kind == "sliding":
            tokens = min(self.window - 1 + wanted.batched, wanted.length)
            return ceil(tokens, self.block) + 1  # a window need not begin where a block does
        if self.kind == "chunked":
            return ceil(min(self.window + wanted.batched, wanted.length), self.block)
        if self.fixed is not None:
            return self.fixed
        return ceil(wanted.length, self.block)


def ceil(number: int, by: int) -> int:
    """Rounded up."""
    return -(-number // by)


@dataclass(frozen=True)
class Cut:
    """How a model is laid out over GPUs and in blocks.

    Attributes:
        element: of the KV cache.
        block: tokens of a block, as asked for or by default.
        states: pages of state a request keeps; None: one for each block (cache mode `all`).
        drafted: tokens that are drafted ahead; convolution states are longer by them.
    """

    geometry: Geometry
    element: Element
    tp: int
    block: int
    rule: Rule
    states: int | None = 1
    drafted: int = 0


def pages(cut: Cut) -> list[Pages]:
    """The layers that keep a cache, kind by kind.

    Raises:
        UsageError: the model cannot be divided by the tensor-parallel size.
    """
    found = [*_attention(cut), *_latent(cut)]
    states = [_state(cut, part) for part in cut.geometry.recurrent]
    if not states:
        return found
    return _aligned(cut, found, states)


def _attention(cut: Cut) -> Iterator[Pages]:
    for part in cut.geometry.attention:
        layers = part.layers - part.borrowed
        if layers < 1:
            continue
        width = cut.element.width(part.head_dim) + cut.element.width(part.value_dim)
        page = cut.block * heads_each(part, cut.tp) * width
        yield Pages(part.kind, layers, cut.block, page, part.window or 0)


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


def _latent(cut: Cut) -> Iterator[Pages]:
    """One vector a token for all heads, so every GPU has it whole."""
    part: Latent | None = cut.geometry.latent
    if part is None:
        return
    if cut.element.name == FP8_DS_MLA:
        width = FP8_DS_MLA_BYTES
    else:
        width = cut.element.width(part.rank + part.rope_dim)
    yield Pages("latent", part.layers, cut.block, cut.block * width)
    if part.index_dim:  # keys in fp8 and a scale of 4 bytes for 128 of them
        indexed = part.index_dim + 4 * ceil(part.index_dim, 128)
        yield Pages("latent", part.layers, cut.block, cut.block * indexed)


def _state(cut: Cut, part: Recurrent) -> Pages:
    conv = part.conv_elements
    if part.groups and part.groups % cut.tp:  # each GPU has the groups that its heads need
        conv += (cut.tp - part.groups) * part.group_elements
    if conv % cut.tp or part.state_elements % cut.tp:
        raise UsageError(f"the recurrent layers cannot be divided among {cut.tp} GPUs")
    conv = conv // part.conv_width * (part.conv_width + cut.drafted) if part.conv_width else conv
    size = conv // cut.tp * state_bytes(None, cut.geometry)
    size += part.state_elements // cut.tp * state_bytes(part.state_dtype, cut.geometry)
    return Pages("state", part.layers, cut.block, size, fixed=cut.states)


def _aligned(cut: Cut, attention: list[Pages], states: list[Pages]) -> list[Pages]:
    """Attention blocks long enough that their page holds a state, and states padded to it."""
    state = max(part.page for part in states)
    if not attention:
        return states
    block = cut.block
    if cut.geometry.latent:
        block = max(block, cut.rule.state_alignment)
    a_token = max(part.page // part.block for part in attention)
    block *= ceil(state, block * a_token)
    block = max(block, cut.block)
    longer = [
        Pages(part.kind, part.layers, block, part.page // part.block * block, part.window)
        for part in attention
    ]
    page = block * a_token
    return [
        *longer,
        *(Pages("state", part.layers, block, page, fixed=part.fixed) for part in states),
    ]
