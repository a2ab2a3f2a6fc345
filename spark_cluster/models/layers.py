"""The kind of each layer of a model, from the many ways in which configs give it."""

from __future__ import annotations

from typing import Any

from spark_cluster.models.keys import Keys

FULL, SLIDING, CHUNKED = "full", "sliding", "chunked"
RECURRENT = "recurrent"
BOTH = "both"
"""Attention and a recurrent state side by side in one layer (Falcon H1)."""
NEITHER = "neither"
"""A layer of its own for a feed-forward network or experts (Nemotron-H)."""

MOST_LAYERS = 10_000

WORDS = {
    "full_attention": FULL,
    "attention": FULL,
    "sliding_attention": SLIDING,
    "sliding_window_attention": SLIDING,
    "local_attention": SLIDING,
    "chunked_attention": CHUNKED,
    "linear_attention": RECURRENT,
    "mamba": RECURRENT,
    "mamba2": RECURRENT,
    "conv": RECURRENT,
    "hybrid": BOTH,
    "mlp": NEITHER,
    "moe": NEITHER,
}
LETTERS = {"M": RECURRENT, "*": FULL, "-": NEITHER, "E": NEITHER}
"""Nemotron-H's `hybrid_override_pattern`."""


def kinds(keys: Keys) -> list[str]:
    """Return the kind of each layer, in order.

    Raises:
        InvalidFile: the config names a kind of layer that is not known, or its list has another
            length than the model.
    """
    layers = keys.positive("num_hidden_layers", "n_layer", "n_layers", "num_layers")
    if layers > MOST_LAYERS:
        raise keys.wrong(f"'num_hidden_layers' is {layers}; models have up to {MOST_LAYERS}")
    found = _listed(keys, layers) or _patterned(keys, layers) or [_uniform(keys)] * layers
    # a layer called local is a full one when the model says no window
    missing = {SLIDING: keys.get("sliding_window"), CHUNKED: keys.get("attention_chunk_size")}
    return [FULL if kind in missing and not missing[kind] else kind for kind in found]


def _listed(keys: Keys, layers: int) -> list[str] | None:
    """Return the kinds from a config that names every layer."""
    pattern = keys.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return _translated(keys, "hybrid_override_pattern", list(pattern), LETTERS, layers)
    for name in ("layer_types", "layers_block_type"):
        listed = keys.get(name)
        if isinstance(listed, list) and listed:
            return _translated(keys, name, listed, WORDS, layers)
    return None


def _translated(
    keys: Keys, name: str, words: list[Any], known: dict[str, str], layers: int
) -> list[str]:
    if len(words) != layers:
        raise keys.wrong(
            f"{name!r} has {len(words)} entries, but 'num_hidden_layers' says {layers} layers"
        )
    strange = sorted({str(word) for word in words} - known.keys())
    if strange:
        raise keys.wrong(
            f"{name!r} has a kind of layer that is not known: {', '.join(strange)}",
            hint=f"known are: {', '.join(known)}",
        )
    return [known[str(word)] for word in words]


def _patterned(keys: Keys, layers: int) -> list[str] | None:
    """Return the kinds from a config that gives a rule."""
    numbers = range(layers)
    if keys.model_type == "falcon_h1":
        return [BOTH] * layers
    if keys.says("linear_num_value_heads"):
        every = keys.positive("full_attention_interval", default=4)
        return [FULL if (i + 1) % every == 0 else RECURRENT for i in numbers]
    if isinstance(indices := keys.get("attn_layer_indices"), list):  # Bamba
        return [FULL if i in indices else RECURRENT for i in numbers]
    if keys.says("attn_layer_period"):  # Jamba
        every, first = keys.positive("attn_layer_period"), keys.number("attn_layer_offset")
        return [FULL if i % every == first else RECURRENT for i in numbers]
    if keys.says("attention_chunk_size"):  # Llama 4: layers without rotary positions see all
        every = keys.positive("no_rope_layer_interval", default=4)
        rope = keys.get("no_rope_layers") or [int((i + 1) % every != 0) for i in numbers]
        return [CHUNKED if i < len(rope) and rope[i] else FULL for i in numbers]
    return _alternating(keys, layers)


def _alternating(keys: Keys, layers: int) -> list[str] | None:
    """Full layers among sliding ones."""
    pattern = keys.get("sliding_window_pattern", "_sliding_window_pattern")
    if isinstance(pattern, str) and set(pattern) <= {"L", "G"} and pattern:  # Exaone 4
        found = [SLIDING if pattern[i % len(pattern)] == "L" else FULL for i in range(layers)]
        return [*found[:-1], FULL]
    if isinstance(pattern, int) and pattern > 1:
        found = [SLIDING if (i + 1) % pattern else FULL for i in range(layers)]
        return [*found[:-1], FULL] if keys.model_type.startswith("gemma4") else found
    if keys.model_type == "gemma2":
        return [FULL if i % 2 else SLIDING for i in range(layers)]
    if keys.model_type == "gpt_oss":
        return [FULL if i % 2 else SLIDING for i in range(layers)]
    if keys.says("use_sliding_window") and keys.says("sliding_window"):  # Qwen 2, Qwen 3
        first = keys.number("max_window_layers", default=0)
        return [SLIDING if i >= first else FULL for i in range(layers)]
    return None


def _uniform(keys: Keys) -> str:
    if keys.get("use_sliding_window") is False or not keys.says("sliding_window"):
        return FULL
    return SLIDING
