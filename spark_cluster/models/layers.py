"""The layers of a model, from the many ways in which configs give them."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from spark_cluster.config.yamlfile import described
from spark_cluster.errors import InvalidFile
from spark_cluster.models.naming import has_trait, table
from spark_cluster.models.shape import Attention, Experts, Recurrent

# The keys of a model's config.json, under any of the names that families give them.

INNER = ("text_config", "llm_config", "language_config", "thinker_config")
"""Where the language model of a multimodal one is described."""

LARGEST = 10**12
"""More than any figure of a model; larger ones are mistakes, or meant to do harm."""

DEEPEST = 4
"""Descriptions inside each other that are looked into."""

_SIZE = re.compile(
    r"(_size|_dims?|_rank|_width|_channels|_heads|_experts|_layers|_inputs|_streams)$|^(num|n|d)_"
)
_NO_SIZE = re.compile(
    r"token|position|logit|window|chunk|freq|interval|period|offset|step|patch|image|max_|min_"
    r"|top_?k|beam|return|bits|block_size|batch|cache|rope|vocab|nextn|mtp|n_predict|labels|_tp$"
    r"|^ep_size|pretrain|timescale|dropout|sink|_group$|query_pre|local|loss|prefix|bucket|every_n|ctx|rotary_dim"
)
KEYS: Mapping[str, list[str]] = table("families")["keys"]
"""Keys of a config that are understood, and names that families give one thing."""


class Keys:
    """The config of a language model; what it does not say itself, its multimodal parent may.

    Args:
        name: of the model, for messages.
    """

    def __init__(self, config: Mapping[str, Any], name: str) -> None:
        self.name = name
        self.outer = config
        self._asked: set[str] = set()
        self._chain = [*_innermost_first(config)]
        self.model_type = str(self.get("model_type", default="") or "")
        self._described = self._chain[0]
        # What `transformers` assumes; published configs do leave keys out (Gemma 3 4B names neither
        # its heads nor their size).
        self._chain.append(table("families")["defaults"].get(self.model_type, {}))

    def get(self, *names: str, default: Any = None) -> Any:
        """The first of these keys that is there and not null."""
        self._asked.update(names)
        for level in self._chain:
            for name in names:
                if level.get(name) is not None:
                    return level[name]
        return default

    def says(self, name: str) -> bool:
        """Return whether a key exists and is not null, false, zero or empty."""
        return bool(self.get(name))

    def number(self, *names: str, default: int | None = None) -> int:
        """A whole number under the first of these names.

        Raises:
            InvalidFile: it is not there and has no default, or is no whole number.
        """
        found = self.get(*names)
        if found is None:
            if default is not None:
                return default
            raise self.wrong(
                f"lacks {names[0]!r}",
                hint="it is needed to know the model's shape; complete the config.json, or take "
                "the one of the original model",
            )
        if isinstance(found, list):  # one figure a layer (Gemma 3n): the widest
            found = max((item for item in found if isinstance(item, int)), default=None)
        if isinstance(found, bool) or not isinstance(found, int):
            key = next(name for name in names if self.get(name) is not None)
            text = described(self.get(key))
            raise self.wrong(f"{key!r} should be a whole number, found {text}")
        if found < 0:
            raise self.wrong(f"{names[0]!r} should not be negative, found {described(found)}")
        if found > LARGEST:
            raise self.wrong(f"{names[0]!r} is {described(found)}, which no model has")
        return found

    def positive(self, *names: str, default: int | None = None) -> int:
        """Return a number as `number` does; it must be above zero."""
        found = self.number(*names, default=default)
        if found == 0:
            raise self.wrong(f"{names[0]!r} should be above 0")
        return found

    def not_understood(self) -> tuple[str, ...]:
        """Keys of the language model that bear on its size and that nobody asked for, sorted."""
        return tuple(
            sorted(
                key
                for key, value in self._described.items()
                if _bears_on_size(key, value) and key not in self._asked.union(KEYS["known"])
            )
        )

    def wrong(self, message: str, hint: str = "") -> InvalidFile:
        """The error that says what is wrong with this config."""
        return InvalidFile(message, where=f"config of {self.name}", hint=hint)


def _bears_on_size(key: str, value: Any) -> bool:
    """Return whether a key, by its name and value, may say how large something is."""
    whole = isinstance(value, int) and not isinstance(value, bool) and value > 1
    return whole and bool(_SIZE.search(key)) and not _NO_SIZE.search(key)


def _innermost_first(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    chain = [config]
    while len(chain) <= DEEPEST:
        inner = next((chain[-1][n] for n in INNER if isinstance(chain[-1].get(n), Mapping)), None)
        if inner is None:
            break
        chain.append(inner)
    yield from reversed(chain)


FULL, SLIDING, CHUNKED = "full", "sliding", "chunked"
RECURRENT = "recurrent"
BOTH = "both"
"""Attention and a recurrent state side by side in one layer (Falcon H1)."""
# "neither" in the table of families: a layer of its own for a feed-forward network or experts
# (Nemotron-H).

MOST_LAYERS = 10_000


def kinds(keys: Keys) -> list[str]:
    """Return the kind of each layer, in order.

    Raises:
        InvalidFile: the config names a kind of layer that is not known, or its list has another
            length than the model.
    """
    listed = keys.get("layers_block_type")
    layers = keys.positive(
        *("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
        default=len(listed) if isinstance(listed, list) and listed else None,
    )
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
        return _translated(keys, "hybrid_override_pattern", list(pattern), "layer_letters", layers)
    for name in ("layer_types", "layers_block_type", "hybrid_layer_pattern"):
        listed = keys.get(name)
        if isinstance(listed, list) and listed:
            predicting = keys.number("num_nextn_predict_layers", default=0)
            if len(listed) == layers + predicting:  # Step names those of its drafter too
                listed = listed[:layers]
            return _translated(keys, name, listed, "layer_words", layers)
    delta = keys.get("linear_attn_config")
    if isinstance(delta, Mapping) and isinstance(delta.get("full_attn_layers"), list):  # Kimi
        full = delta["full_attn_layers"]
        return [FULL if i + 1 in full else RECURRENT for i in range(layers)]
    return None


def _translated(keys: Keys, name: str, words: list[Any], names: str, layers: int) -> list[str]:
    known: dict[str, str] = table("families")[names]
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
    if keys.says("use_sliding_window") and keys.says("sliding_window"):  # Qwen 2, Qwen 3
        first = keys.number("max_window_layers", default=0)
        return [SLIDING if i >= first else FULL for i in range(layers)]
    return None


def _uniform(keys: Keys) -> str:
    if keys.get("use_sliding_window") is False or not keys.says("sliding_window"):
        return FULL
    return SLIDING


# Layers that an architecture search chose one by one (Nemotron NAS).

FFN_MULTIPLE = 256
"""A feed-forward size is rounded up to a multiple of it (`_find_multiple` in the configuration code
of these models)."""


@dataclass(frozen=True)
class Searched:
    """The layers of `block_configs`: attention by its number of key-value heads, and feed-forward
    layers, with their average size.
    """

    attention: tuple[Attention, ...]
    dense_layers: int
    intermediate: int


def searched(keys: Keys, heads: int) -> Searched | None:
    """Read layers that differ one by one; None where the config gives none.

    Raises:
        InvalidFile: an entry is not understood.
    """
    blocks, hidden = keys.get("block_configs"), keys.positive("hidden_size", "n_embd", "d_model")
    if not isinstance(blocks, list) or not blocks:
        return None
    shared: Counter[int] = Counter()
    sizes = []
    for block in blocks:
        found = Keys(block if isinstance(block, Mapping) else {}, keys.name)
        attention, network = found.get("attention"), found.get("ffn")
        if not (isinstance(attention, Mapping) and isinstance(network, Mapping)):
            raise keys.wrong("'block_configs' should give each layer 'attention' and 'ffn'")
        if not attention.get("no_op") and not attention.get("replace_with_linear"):
            shared[Keys(attention, keys.name).positive("n_heads_in_group")] += 1
        if network.get("no_op") or network.get("replace_with_linear"):
            continue
        times = network.get("ffn_mult")
        if not isinstance(times, int | float) or not 0 < times < LARGEST:
            raise keys.wrong("'block_configs' has a layer without 'ffn_mult'")
        sizes.append(-(-int(2 * times * hidden / 3) // FFN_MULTIPLE) * FFN_MULTIPLE)
    width = keys.positive("head_dim", default=max(1, hidden // heads))
    layers = tuple(
        Attention("full", count, heads, max(1, heads // group), width, width)
        for group, count in sorted(shared.items())
    )
    return Searched(layers, len(sizes), sum(sizes) // max(1, len(sizes)))


# A mixture of experts, as configs describe it.


def experts(keys: Keys, layers: int) -> tuple[Experts | None, int]:
    """The experts, and how many layers have a dense feed-forward network.

    Raises:
        InvalidFile: there are experts, but how many work on a token, or their size, is not said; or
            more layers have experts than there are.
    """
    off = keys.get("enable_moe_block") is False
    count = 0 if off else keys.number(*KEYS["experts"], default=0)
    if count == 0:
        return None, _written(keys, "-", "mlp", default=layers)
    with_experts = _layers(keys, layers)
    if with_experts > layers:
        raise keys.wrong(f"says {with_experts} layers with experts, but {layers} layers in all")
    intermediate = keys.positive("moe_intermediate_size", "intermediate_size", "ffn_hidden_size")
    found = Experts(
        count=count,
        top_k=keys.positive(*KEYS["experts_per_token"]),
        layers=with_experts,
        intermediate=intermediate,
        shared_intermediate=_shared(keys, intermediate),
        latent=keys.number("moe_latent_size", "routed_expert_hidden_size", default=0),
    )
    if has_trait(keys.model_type, "dense_beside_experts"):
        return found, layers
    return found, _written(keys, "-", "mlp", default=layers - with_experts)


def _layers(keys: Keys, layers: int) -> int:
    """Return how many layers have experts."""
    chosen = keys.get("moe_layers", "moe_layers_enum")
    if isinstance(chosen, str):  # Step: "3,4,5"
        chosen = [number for number in chosen.split(",") if number.strip()]
    if isinstance(chosen, list) and chosen:
        return len(chosen)
    for name in ("mlp_layer_types", "moe_layer_freq"):
        listed = keys.get(name)
        if isinstance(listed, list) and len(listed) == layers:
            return layers - listed.count("dense") - listed.count(0)
    stepped = _in_steps(keys, layers)
    if stepped is not None:
        return stepped
    sparse = _written(keys, "E", "moe", default=layers)
    if sparse != layers:
        return sparse
    dense = keys.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise keys.wrong(f"'mlp_only_layers' should be a list, found {described(dense)}")
    first = keys.number("first_k_dense_replace", "num_dense_layers", default=0)
    step = keys.get("decoder_sparse_step")
    step = step if isinstance(step, int) and step > 0 else 1
    return sum(i not in dense and i >= first and (i + 1) % step == 0 for i in range(layers))


def _in_steps(keys: Keys, layers: int) -> int | None:
    """Return how many layers have experts where every Nth has them; None for other rules."""
    if keys.says("interleave_moe_layer_step"):  # Llama 4
        return layers // keys.positive("interleave_moe_layer_step")
    if keys.says("expert_layer_period"):  # Jamba
        every, first = keys.positive("expert_layer_period"), keys.number("expert_layer_offset")
        return sum(i % every == first for i in range(layers))
    if keys.says("moe_layer_start_index"):  # ERNIE
        begin, every = keys.number("moe_layer_start_index"), keys.positive("moe_layer_interval")
        end = keys.number("moe_layer_end_index", default=layers - 1)
        return sum((i + 1) % every == 0 for i in range(begin, min(end + 1, layers)))
    return None


def _shared(keys: Keys, intermediate: int) -> int:
    """Intermediate size of what works on every token next to the experts."""
    given = keys.number(
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        *("shared_intermediate_size", "share_expert_dim"),
        default=0,
    )
    if given:
        return given
    if keys.model_type.startswith("llama4"):
        return intermediate
    named = ("n_shared_experts", "num_shared_experts", "moe_num_shared_experts")
    return keys.number(*named, default=0) * intermediate


def _written(keys: Keys, letter: str, word: str, default: int) -> int:
    """Return how many layers are of a kind, where the config gives each kind layers of its own."""
    pattern = keys.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return pattern.count(letter)
    listed = keys.get("layers_block_type")
    if isinstance(listed, list) and {"mlp", "moe"} & {str(item) for item in listed}:
        return listed.count(word)
    return default


# Layers with a state of constant size, as configs describe them.
#
# Shapes of the states are those of vLLM's `MambaStateShapeCalculator` (read in 0.19 and 0.32).

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
        return (_gdn(keys, layers), *_of_tables(keys))
    if isinstance(keys.get("linear_attn_config"), Mapping):
        return (_kda(keys, layers),)
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


def _of_tables(keys: Keys) -> Iterator[Recurrent]:
    """The convolution over what tables of n-grams give each token, in all streams of the hidden
    state; its kernel takes every `ngram_size`th token (vLLM's `qwen4_exp/nvidia/ple_layer.py`).
    """
    placed = keys.get("ple_layer_ids")
    if not isinstance(placed, list) or not placed:
        return
    every = keys.positive("ngram_size", default=1)
    reach = (keys.positive("ple_conv_kernel_size", default=1) - 1) * every
    width = keys.positive("hidden_size") * keys.positive("hc_count", default=1)
    yield Recurrent("conv", len(placed), width * reach, 0, 0, conv_width=reach, replicated=True)


def _kda(keys: Keys, layers: int) -> Recurrent:
    """Kimi's delta attention: as many keys as values, states in float32 (vLLM's
    `kda_state_shape` and `kda_state_dtype`).
    """
    hidden = keys.positive("hidden_size")
    said = Keys(keys.get("linear_attn_config"), keys.name)
    heads, width = said.positive("num_heads"), said.positive("head_dim")
    kernel = said.positive("short_conv_kernel_size", default=4)
    inner = heads * width
    return Recurrent(
        kind="kda",
        layers=layers,
        conv_elements=3 * inner * (kernel - 1),
        state_elements=inner * width,
        # q, k, v and out; two gates of low rank; b of each head; the convolutions
        weights=hidden * (4 * inner + 2 * width + heads) + 2 * width * inner + 3 * inner * kernel,
        conv_width=kernel - 1,
        state_dtype="float32",
        exports=said.get("gate_lower_bound", default=keys.get("linear_lower_bound")) is not None,
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
    usual = "float32" if has_trait(keys.model_type, "float32_state") else None
    for key, families in STATE_KEYS.items():
        found = keys.get(key)
        if found is not None and keys.model_type.startswith(families):
            return str(found)
    return usual
