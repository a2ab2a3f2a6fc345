"""The shape of a model, and its weights in memory: bytes by part, and what a step reads.

The bytes are counted from the checkpoint's tensors where those are known (`counted`), else computed
from the shape. Whoever asks for sizes or for bytes a step asks here and need not know which.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

Part = Literal[
    "attention",
    "recurrent",
    "mlp",
    "shared",
    "experts",
    "router",
    "norms",
    "embedding",
    "output",
    "lookup",
    "other",
    "drafter",
]
"""Parts of a model.

attention, recurrent, mlp: layers that every token passes; what is in a layer and not recognised
    counts as `mlp`. shared: what works on every token next to the experts. experts: all experts of
    all layers. norms: norms and biases. embedding: the output layer too where they are tied.
output: the output layer of its own. lookup: tables of which a token needs a row (embeddings of
    each layer). other: vision and audio towers. drafter: MTP layers, in memory only while they
    draft.
"""

PARTS: tuple[Part, ...] = get_args(Part)

MATRICES: tuple[Part, ...] = ("attention", "recurrent", "mlp", "shared", "experts")
"""Parts made of matrices that quantization applies to."""

EVERY_TOKEN: tuple[Part, ...] = (
    "attention",
    "recurrent",
    "mlp",
    "shared",
    "router",
    "norms",
)
"""Parts that every step reads in full."""

REPLICATED: tuple[Part, ...] = ("router", "norms")
"""Parts that every rank holds in full (vLLM: `ReplicatedLinear`, norms)."""


@dataclass(frozen=True)
class StoredPart:
    """One part of a model in memory, all ranks together, before anything is replicated.

    Attributes:
        parameters: weights, unpacked: a byte of two 4-bit weights counts as two.
        bytes: that they take, scales and zero points included.
        whole: bytes of these that every rank holds in full; tensor parallelism divides the others.
        format: of most of its weights, in the words of recipes (`bf16`, `fp8`, `nvfp4`, ...).
    """

    name: Part
    parameters: float
    bytes: float
    whole: float = 0.0
    format: str = "bf16"


@dataclass(frozen=True)
class StoredWeights:
    """The weights of a model in memory.

    Attributes:
        parts: those that there are, in the order of `PARTS`.
        quantization: of the checkpoint, or what it becomes when it is loaded.
        experts, top_k: experts a layer, and how many work on a token; 0 without.
        tied: the output layer is the embedding.
        counted: from the tensors of the checkpoint; else computed from the shape.
    """

    parts: tuple[StoredPart, ...]
    quantization: str
    experts: int = 0
    top_k: int = 0
    tied: bool = False
    counted: bool = False

    def part(self, name: Part) -> StoredPart:
        """A part; an empty one when the model has none of that name."""
        return next((part for part in self.parts if part.name == name), StoredPart(name, 0, 0))

    @property
    def experts_fraction(self) -> float:
        """The share of the weights that is experts, 0 to 1."""
        whole = self.memory_bytes()
        return self.part("experts").bytes / whole if whole else 0.0

    def memory_bytes(self, tp: int = 1, *, drafter: bool = False) -> float:
        """Bytes that one rank holds.

        Args:
            drafter: the MTP layers are loaded too.
        """
        return sum(
            part.whole + (part.bytes - part.whole) / tp
            for part in self.parts
            if drafter or part.name != "drafter"
        )

    def step_bytes(self, tokens: float = 1, tp: int = 1) -> float:
        """Bytes of weights that one rank reads in a step over `tokens` tokens.

        The embedding is looked up, not read, but as output layer it is read whole; of the experts
        those are read that the tokens choose.
        """
        read = [self.part(name) for name in EVERY_TOKEN]
        read.append(self.part("embedding" if self.tied else "output"))
        found = sum(part.whole + (part.bytes - part.whole) / tp for part in read)
        experts = self.part("experts")
        found += experts.bytes * self.experts_share(tokens) / tp
        return found

    def quantized_online(self) -> StoredWeights:
        """The same in FP8, made of BF16 while it is loaded: matrices of layers and experts are,
        embedding, output layer, routers, norms and towers stay as they are (vLLM:
        `quantization/fp8.py`, `Fp8OnlineLinearMethod` and `Fp8OnlineMoEMethod`).
        """
        parts = tuple(
            replace(part, bytes=part.bytes / 2, whole=part.whole / 2, format="fp8")
            if part.name in MATRICES and part.format == "bf16"
            else part
            for part in self.parts
        )
        return replace(self, parts=parts, quantization="fp8-online")

    def experts_share(self, tokens: float) -> float:
        """The share of a layer's experts that some tokens need together.

        Each token picks `top_k` of all independently, so an expert is spared with probability
        (1 - k/E)^tokens. All, where their number is not known.
        """
        if not 0 < self.top_k <= self.experts:
            return 1.0
        return 1.0 - math.pow(1.0 - self.top_k / self.experts, tokens)


@dataclass(frozen=True)
class Attention:
    """Layers that keep keys and values of every token, all of one shape.

    Attributes:
        kind: `full`; `sliding` sees `window` tokens; `chunked` attends within chunks of `window`.
        layers: how many such layers.
        head_dim: of queries and keys.
        value_dim: of values.
        k_is_v: the values are the keys (Gemma 4's full layers), so the checkpoint has no weights
            for them; in memory vLLM has those of the keys twice, and the cache holds both.
        gated: a gate of the queries' size multiplies what attention gives (Qwen3-Next and later).
        index_dim: elements of the key that an indexer keeps next to, of each `pooled` tokens one
            (Qwen3.8-Flash-Next), in `index_layers` of them (MiniMax-M3; None: all); 0 without one.
        borrowed: how many of the layers use the cache of an earlier layer and have none of their
            own (`num_kv_shared_layers`: Gemma 3n, Gemma 4 E2B and E4B).
    """

    kind: Literal["full", "sliding", "chunked"]
    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    value_dim: int
    window: int | None = None
    k_is_v: bool = False
    borrowed: int = 0
    gated: bool = False
    index_dim: int = 0
    pooled: int = 1
    index_layers: int | None = None


@dataclass(frozen=True)
class Latent:
    """Layers with multi-head latent attention (MLA): one compressed vector a token, all heads'.

    Attributes:
        rank: elements of the compressed keys and values (`kv_lora_rank`).
        rope_dim: elements that carry the position (`qk_rope_head_dim`).
        q_rank: of compressed queries; None when they are not compressed.
        index_dim: elements of the key that a sparse attention's indexer keeps of a token next to
            (DeepSeek V3.2); 0 without one. The indexer has `index_heads` heads.
        index_layers: layers with an indexer of their own; others use that of an earlier layer
            (GLM-5.2), or have none (DeepSeek V4). None: all.
        pooled: tokens that share one key of the indexer (GLM-5.3-Flash).
        output_rank: of the low-rank output, which is made in `output_groups` of heads and leaves no
            matrix to expand keys and values (DeepSeek V4); 0: an output over all heads.
        kept: vectors that the cache has for a token, on average of the layers: below 1 where some
            layers keep one for several tokens.
        compressed: tokens that share a vector, and how many layers keep such vectors (DeepSeek V4).
        window: of tokens whose own vectors every layer keeps next to those.
        shared: layers use the vectors and index keys of an earlier one (DeepSeek V4.1).
    """

    layers: int
    q_heads: int
    rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    q_rank: int | None = None
    index_dim: int = 0
    index_heads: int = 0
    index_layers: int | None = None
    pooled: int = 1
    output_rank: int = 0
    output_groups: int = 0
    kept: float = 1.0
    compressed: tuple[tuple[int, int], ...] = ()
    window: int = 0
    shared: bool = False


@dataclass(frozen=True)
class Recurrent:
    """Layers with a state of constant size: gated delta net (GDN), Kimi's delta attention (KDA),
    Mamba, Mamba 2, short convolutions (LFM2).

    Attributes:
        conv_elements: of the convolution state of one request in one layer, before division by TP.
        state_elements: of the recurrent state of one request in one layer, before division by TP.
        weights: parameters of one layer.
        conv_width: tokens that the convolution looks back, one less than its kernel.
        groups: Mamba 2: groups of B and C; TP that does not divide them replicates some.
        group_elements: Mamba 2: elements of the convolution state for one group.
        chunk: tokens that Mamba 2 works on at once.
        state_dtype: of the recurrent state, as the config says or vLLM sets it for the family;
            None: as the model's.
        replicated: each GPU holds the whole state.
        exports: the kernel of its prefill can keep a state from the middle of a batch. FlashKDA
            does so where the gate is bounded.
    """

    kind: Literal["gdn", "kda", "mamba", "mamba2", "conv"]
    layers: int
    conv_elements: int
    state_elements: int
    weights: int
    conv_width: int = 3
    groups: int = 0
    group_elements: int = 0
    chunk: int = 0
    state_dtype: str | None = None
    replicated: bool = False
    exports: bool = True


@dataclass(frozen=True)
class Experts:
    """A mixture of experts.

    Attributes:
        count: experts a layer; `top_k` of them work on a token.
        layers: how many layers have them.
        intermediate: of one expert.
        shared_intermediate: of what works on every token next to them; 0 without it.
        latent: width of the space that they work in, where that is not the model's own: two
            matrices a layer lead there and back (Nemotron 3 Super); 0 otherwise.
    """

    count: int
    top_k: int
    layers: int
    intermediate: int
    shared_intermediate: int = 0
    latent: int = 0


@dataclass(frozen=True)
class Geometry:
    """A model without its weights.

    Attributes:
        name: repository on the hub, or the folder that it was read from.
        model_type: as its config says (`gemma4`, `llama`, ...).
        intermediate: of the dense feed-forward layers (next to experts too, where a model has
            both in one layer); `dense_layers` have one.
        tied: the output layer is the embedding.
        max_positions: longest context, tokens.
        architectures: classes of the model, as its config names them; empty where it is not read.
        rotary_width: elements of the tables of rotary positions for one position.
        table_parameters: of tables of n-grams (Engram, per-layer embeddings), which vLLM shares out
            to all GPUs; on a Spark also where they are offloaded to the host's memory.
        tower_parameters: of vision and audio towers.
        embedding_tables: entries of a vector for each layer, of which most are never read.
        quantization: as its own config says; None for plain BF16.
        kv_dtype: what the checkpoint asks for its KV cache (`fp8`), which is what vLLM's `auto`
            becomes then; None: nothing.
        dtype: of activations, and of a KV cache that is not quantized.
        known: False when the family is guessed by its shape only: constants are less sure.
        mtp_layers: that draft the next tokens, where the checkpoint has some (multi-token
            prediction); not among `layers`.
        drafter: the model that drafts for it, where that is one of its own and known; plans set it.
        not_understood: keys of its config that bear on its size and that nothing here knows; then
            only its tensors say how large it is.
        stored: its weights as counted from the tensors of the checkpoint; None when they are not
            at hand.
    """

    name: str
    model_type: str
    layers: int
    hidden: int
    vocab: int
    intermediate: int
    dense_layers: int
    attention: tuple[Attention, ...] = ()
    latent: Latent | None = None
    recurrent: tuple[Recurrent, ...] = ()
    experts: Experts | None = None
    tied: bool = False
    max_positions: int = 0
    rotary_width: int = 0
    table_parameters: int = 0
    architectures: tuple[str, ...] = ()
    tower_parameters: int = 0
    embedding_tables: int = 0
    quantization: str | None = None
    kv_dtype: str | None = None
    dtype: str = "bfloat16"
    known: bool = True
    mtp_layers: int = 0
    drafter: Geometry | None = None
    not_understood: tuple[str, ...] = ()
    stored: StoredWeights | None = None

    @property
    def is_moe(self) -> bool:
        """True if the model has experts."""
        return self.experts is not None

    @property
    def dense_first(self) -> bool:
        """True if a few layers before those with experts are dense (DeepSeek, GLM, ERNIE)."""
        return self.experts is not None and 0 < self.dense_layers < self.experts.layers / 2

    @property
    def other_parameters(self) -> int:
        """Parameters that are read once a request at most."""
        return self.tower_parameters + self.embedding_tables

    @property
    def blocks(self) -> int:
        """Residual blocks: each is one mixer (attention or recurrent) or one feed-forward, with its
        norm and the sum that follows. Two a layer, except for models whose layers are one of them
        (Nemotron H: 52 layers, 52 blocks).
        """
        mixers = sum(part.layers for part in self.attention)
        mixers += sum(part.layers for part in self.recurrent)
        mixers += self.latent.layers if self.latent else 0
        sparse = self.experts.layers if self.experts else 0
        return mixers + min(self.layers, self.dense_layers + sparse)

    @property
    def tables_bytes(self) -> float:
        """Bytes of the tables of rotary positions, which each rank holds in full, in 16 bits: as
        many rows as the model has positions, whatever --max-model-len is. 384 MiB for Gemma 4.
        """
        return 2.0 * self.max_positions * self.rotary_width
