"""A mixture of experts, as configs describe it."""

from __future__ import annotations

from spark_cluster.config.yamlfile import described
from spark_cluster.models.keys import Keys
from spark_cluster.models.shape import Experts

COUNT = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
TOP_K = (
    "num_experts_per_tok",
    "top_k_experts",
    "num_experts_per_token",
    "moe_top_k",
    "moe_k",
    "moe_topk",
)
SIDE_BY_SIDE = ("gemma4_text",)
"""Families whose layers have a dense network and experts both."""


def experts(keys: Keys, layers: int) -> tuple[Experts | None, int]:
    """The experts, and how many layers have a dense feed-forward network.

    Raises:
        InvalidFile: there are experts, but how many work on a token, or their size, is not said.
    """
    count = 0 if keys.get("enable_moe_block") is False else keys.number(*COUNT, default=0)
    if count == 0:
        return None, _written(keys, "-", "mlp", default=layers)
    with_experts = _layers(keys, layers)
    intermediate = keys.positive("moe_intermediate_size", "intermediate_size", "ffn_hidden_size")
    found = Experts(
        count=count,
        top_k=keys.positive(*TOP_K),
        layers=with_experts,
        intermediate=intermediate,
        shared_intermediate=_shared(keys, intermediate),
        latent=keys.number("moe_latent_size", default=0),
    )
    if keys.model_type in SIDE_BY_SIDE:
        return found, layers
    return found, _written(keys, "-", "mlp", default=layers - with_experts)


def _layers(keys: Keys, layers: int) -> int:
    """Return how many layers have experts."""
    chosen = keys.get("moe_layers")
    if isinstance(chosen, list) and chosen:
        return len(chosen)
    if keys.says("interleave_moe_layer_step"):  # Llama 4
        return layers // keys.positive("interleave_moe_layer_step")
    if keys.says("expert_layer_period"):  # Jamba
        every, first = keys.positive("expert_layer_period"), keys.number("expert_layer_offset")
        return sum(i % every == first for i in range(layers))
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


def _shared(keys: Keys, intermediate: int) -> int:
    """Intermediate size of what works on every token next to the experts."""
    given = keys.number(
        "shared_expert_intermediate_size",
        "moe_shared_expert_intermediate_size",
        "shared_intermediate_size",
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
