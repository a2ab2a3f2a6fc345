"""The shape of a model: what its memory and its speed follow from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spark_cluster.models.stored_tensors import StoredWeights


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


@dataclass(frozen=True)
class Latent:
    """Layers with multi-head latent attention (MLA): one compressed vector a token, all heads'.

    Attributes:
        rank: elements of the compressed keys and values (`kv_lora_rank`).
        rope_dim: elements that carry the position (`qk_rope_head_dim`).
        q_rank: of compressed queries; None when they are not compressed.
        index_dim: elements of the key that a sparse attention's indexer keeps of a token next to
            (DeepSeek V3.2); 0 without one.
    """

    layers: int
    q_heads: int
    rank: int
    rope_dim: int
    nope_dim: int
    value_dim: int
    q_rank: int | None = None
    index_dim: int = 0


@dataclass(frozen=True)
class Recurrent:
    """Layers with a state of constant size: gated delta net (GDN), Mamba, Mamba 2, short
    convolutions (LFM2).

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
    """

    kind: Literal["gdn", "mamba", "mamba2", "conv"]
    layers: int
    conv_elements: int
    state_elements: int
    weights: int
    conv_width: int = 3
    groups: int = 0
    group_elements: int = 0
    chunk: int = 0
    state_dtype: str | None = None


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
        other_parameters: vision and audio towers and what else is read once a request at most.
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
    architectures: tuple[str, ...] = ()
    other_parameters: int = 0
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
    def tables_bytes(self) -> float:
        """Bytes of the tables of rotary positions, which each rank holds in full, in 16 bits: as
        many rows as the model has positions, whatever --max-model-len is. 384 MiB for Gemma 4.
        """
        return 2.0 * self.max_positions * self.rotary_width
