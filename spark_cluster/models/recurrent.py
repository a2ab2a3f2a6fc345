"""Layers with a state of constant size, as configs describe them.

Shapes of the states are those of vLLM's `MambaStateShapeCalculator` (read in 0.19 and 0.32).
"""

from __future__ import annotations

from spark_cluster.models.keys import Keys
from spark_cluster.models.shape import Recurrent

FLOAT32_STATE = {"nemotron_h", "nemotron_h_puzzle"}
"""vLLM keeps their recurrent state in float32 when the config does not say otherwise."""

STATE_KEYS = {"mamba_ssm_dtype": ("qwen3_5", "qwen4"), "mamba_ssm_cache_dtype": ("nemotron_h",)}
"""The key for the type of the recurrent state, and beginnings of the families whose class reads it
(`MODELS_CONFIG_MAP` in vLLM's `model_executor/models/config.py`). Others ignore such a key: the
state has the model's own type."""


def recurrent(keys: Keys, layers: int) -> tuple[Recurrent, ...]:
    """Return the recurrent layers of a model, empty without any.

    Raises:
        InvalidFile: the config has such layers but not their sizes, or of a kind not known.
    """
    if layers == 0:
        return ()
    if keys.get("linear_num_value_heads") is not None:
        return (_gdn(keys, layers),)
    if keys.get("mamba_n_heads", "mamba_num_heads") is not None:
        return (_mamba2(keys, layers),)
    if keys.get("conv_L_cache") is not None:
        return (_short_convolution(keys, layers),)
    if keys.get("mamba_d_state") is not None:
        return (_mamba(keys, layers),)
    raise keys.wrong(
        "has layers with a recurrent state, but none of the keys that give its size",
        hint="known are gated delta nets ('linear_num_value_heads', ...), Mamba 2 "
        "('mamba_n_heads' or 'mamba_num_heads', ...), Mamba ('mamba_d_state', ...) and short "
        "convolutions ('conv_L_cache')",
    )


def _gdn(keys: Keys, layers: int) -> Recurrent:
    hidden = keys.positive("hidden_size")
    k_heads, v_heads = (
        keys.positive("linear_num_key_heads"),
        keys.positive("linear_num_value_heads"),
    )
    k_dim, v_dim = keys.positive("linear_key_head_dim"), keys.positive("linear_value_head_dim")
    kernel = keys.positive("linear_conv_kernel_dim", default=4)
    keyed, valued = k_heads * k_dim, v_heads * v_dim
    conv = 2 * keyed + valued
    return Recurrent(
        kind="gdn",
        layers=layers,
        conv_elements=conv * (kernel - 1),
        state_elements=v_heads * v_dim * k_dim,
        # q, k, v, gate z, then a and b of each head; the convolution; out
        weights=hidden * (conv + valued + 2 * v_heads) + conv * kernel + valued * hidden,
        conv_width=kernel - 1,
        state_dtype=_state_dtype(keys),
    )


def _mamba2(keys: Keys, layers: int) -> Recurrent:
    hidden = keys.positive("hidden_size")
    heads = keys.positive("mamba_n_heads", "mamba_num_heads")
    head_dim = keys.get("mamba_d_head", "mamba_head_dim")
    expand = keys.positive("mamba_expand", "expand", default=2)
    inner = keys.number("mamba_d_ssm", default=0)
    if isinstance(head_dim, int):
        head_dim = keys.positive("mamba_d_head", "mamba_head_dim")
    else:  # "auto"
        head_dim = (inner or expand * hidden) // heads
    inner = heads * head_dim
    groups = keys.positive("mamba_n_groups", "n_groups", default=1)
    state = keys.positive("mamba_d_state", "ssm_state_size")
    kernel = keys.positive("mamba_d_conv", "conv_kernel", default=4)
    conv = inner + 2 * groups * state
    return Recurrent(
        kind="mamba2",
        layers=layers,
        conv_elements=conv * (kernel - 1),
        state_elements=inner * state,
        weights=hidden * (inner + conv + heads) + conv * kernel + inner * hidden,
        conv_width=kernel - 1,
        groups=groups,
        group_elements=2 * state * (kernel - 1),
        chunk=keys.positive("mamba_chunk_size", "chunk_size", default=256),
        state_dtype=_state_dtype(keys),
    )


def _mamba(keys: Keys, layers: int) -> Recurrent:
    hidden = keys.positive("hidden_size")
    inner = keys.positive("mamba_expand", default=2) * hidden
    state = keys.positive("mamba_d_state")
    kernel = keys.positive("mamba_d_conv", default=4)
    rank = keys.get("mamba_dt_rank")
    automatic = -(-hidden // 16)
    rank = keys.positive("mamba_dt_rank") if isinstance(rank, int) else automatic
    weights = 2 * hidden * inner + inner * kernel + inner * (rank + 2 * state)
    return Recurrent(
        kind="mamba",
        layers=layers,
        conv_elements=inner * (kernel - 1),
        state_elements=inner * state,
        weights=weights + rank * inner + inner * state + inner * hidden,
        conv_width=kernel - 1,
        state_dtype=_state_dtype(keys),
    )


def _short_convolution(keys: Keys, layers: int) -> Recurrent:
    hidden = keys.positive("hidden_size")
    kernel = keys.positive("conv_L_cache")
    return Recurrent(
        kind="conv",
        layers=layers,
        conv_elements=hidden * (kernel - 1),
        state_elements=0,
        weights=4 * hidden * hidden + hidden * kernel,
        conv_width=kernel - 1,
    )


def _state_dtype(keys: Keys) -> str | None:
    usual = "float32" if keys.model_type in FLOAT32_STATE else None
    for key, families in STATE_KEYS.items():
        found = keys.get(key)
        if found is not None and keys.model_type.startswith(families):
            return str(found)
    return usual
