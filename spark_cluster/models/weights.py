"""The parameters of a model, part by part, and the bytes they take and cost to read."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from spark_cluster.config.launch import Launch
from spark_cluster.config.recipe_schema import Quantization
from spark_cluster.config.yamlfile import did_you_mean
from spark_cluster.errors import UsageError
from spark_cluster.models.naming import NOT_SAID, has_trait, table
from spark_cluster.models.shape import (
    MATRICES,
    REPLICATED,
    Geometry,
    Part,
    StoredPart,
    StoredWeights,
)

BYTES: Mapping[Quantization, float] = {
    name: one["bytes"] for name, one in table("formats")["quantizations"].items()
}
"""Bytes a parameter of a quantized layer takes, scales included."""

SHOWN_KEYS = 3


def parameters(geometry: Geometry) -> dict[Part, int]:
    """Return the parameters of each part, from a model's shape.

    Norms and biases, below 0.1 % of any model, are left out.
    """
    hidden, experts = geometry.hidden, geometry.experts
    matrices = 2 if has_trait(geometry.model_type, "ungated_mlp") else 3
    attention = 0
    for part in geometry.attention:
        values = 0 if part.k_is_v else part.value_dim
        own = (part.layers - part.borrowed) * part.kv_heads * (part.head_dim + values)
        each = (2 if part.gated else 1) * part.head_dim + part.value_dim
        attention += hidden * (part.layers * part.q_heads * each + own)
    width = (experts.latent if experts else 0) or hidden
    routed = experts.count * experts.layers if experts else 0
    shared = experts.shared_intermediate * experts.layers if experts else 0
    latent = 2 * hidden * experts.latent * experts.layers if experts else 0
    return {
        "attention": attention + _latent(geometry),
        "recurrent": sum(part.layers * part.weights for part in geometry.recurrent),
        "mlp": matrices * hidden * geometry.intermediate * geometry.dense_layers + latent,
        "shared": matrices * hidden * shared,
        "experts": matrices * width * experts.intermediate * routed if experts else 0,
        "router": hidden * routed,
        "embedding": geometry.vocab * hidden,
        "output": 0 if geometry.tied else geometry.vocab * hidden,
        "lookup": geometry.table_parameters,
        "other": geometry.other_parameters,
    }


def _latent(geometry: Geometry) -> int:
    latent = geometry.latent
    if latent is None:
        return 0
    query = latent.q_heads * (latent.nope_dim + latent.rope_dim)
    if latent.q_rank is None:
        queries = geometry.hidden * query
    else:
        queries = geometry.hidden * latent.q_rank + latent.q_rank * query
    keys = geometry.hidden * (latent.rank + latent.rope_dim)
    output = latent.q_heads * latent.value_dim
    if latent.output_rank:
        output *= latent.output_rank
        output += latent.output_groups * latent.output_rank * geometry.hidden
    else:
        keys += latent.rank * latent.q_heads * (latent.nope_dim + latent.value_dim)
        output *= geometry.hidden
    indexer = latent.index_heads * ((latent.q_rank or 0) * latent.index_dim + geometry.hidden)
    indexer += geometry.hidden * latent.index_dim
    indexed = latent.layers if latent.index_layers is None else latent.index_layers
    return latent.layers * (queries + keys + output) + indexed * indexer


def formats(geometry: Geometry, quantization: Quantization) -> dict[Part, Quantization]:
    """Return the format in memory of each part that quantization can apply to.

    The router, the embedding and the vision tower stay BF16 in every build that was looked at, and
    the output layer in most. Builds differ in what they leave as it is:

    - NVFP4: NVIDIA's Gemma 4 quantizes the feed-forward layers of the 31B and the experts of the
      26B-A4B only (32.7 and 18 GB on the hub), others all matrices (source: muninn-gemma4-26b,
      muninn-gemma4-31b). NVIDIA's Qwen3.5 and 3.6 have attention and recurrent layers in FP8, the
      output layer in NVFP4, and multiply in 16 bits (source: vllm-42566, sglang-27906, atlas-121;
      23.4 GB on the hub). Unsloth's have the output layer in FP8 (source: freetoken-208); others
      with experts leave the recurrent and shared ones in BF16 (source: atlas-nvfp4). NVIDIA's
      Qwen3-Next has both in BF16 (source: model-optimizer-681). MiniMax-M2 has its experts in
      NVFP4, and in one build attention too (source: minimax-nvfp4). Laguna and models with MLA
      keep attention in BF16 (source: nvfp4-in-16-bits), Qwen3.8-Flash-Next too (source:
      freetoken-409), with its table of n-grams in FP8 (source: mia-qwen38-flash-next), H Company's
      Holo and saricles' builds nothing (source: nvfp4-all-matrices); Unsloth's are alike with and
      without experts (source: unsloth-fast), AEON's keep recurrent layers in BF16 (source:
      jvr0x-series).
    - MXFP4 is the format of experts (gpt-oss, DeepSeek V4); the rest is BF16, and in DeepSeek V4
      FP8 (its config: `expert_dtype`). Images that also take
      `--mxfp4-layers` quantize what that names (`Serving.mxfp4_layers`).
    - INT4 by AutoRound leaves shared experts of models with recurrent layers in BF16 (source:
      site-one-moe); AWQ leaves recurrent layers so.
    """
    parts, special = dict.fromkeys(MATRICES, quantization), _kept_by(geometry, quantization)
    if quantization == "mxfp4" and geometry.is_moe:
        return {**dict.fromkeys(MATRICES, _KEPT), **special, "experts": quantization}
    if special:
        return {**parts, **special}
    if quantization == "gptq-int4" and geometry.recurrent:
        return {**parts, "shared": _KEPT}
    return parts if BYTES[quantization] >= 1 else {**parts, "recurrent": _KEPT}


_KEPT: Quantization = "bf16"


def multiplies_in_16_bits(geometry: Geometry) -> bool:
    """Return whether a build in NVFP4 has weights in 4 bits and activations in 16 (W4A16), which
    vLLM serves with Marlin only (source: vllm-42566).
    """
    return _build(geometry, "nvfp4").get("weight_only") is True


def _kept_by(geometry: Geometry, quantization: Quantization) -> dict[Part, Quantization]:
    """Return what builds in this format have in another one, where that is known."""
    found: dict[Part, Quantization] = _build(geometry, quantization).get("keeps", {})
    return found


def _build(geometry: Geometry, quantization: Quantization) -> dict[str, Any]:
    """Return what is known of the builds of a model in a format."""
    for row in table("families")["builds"]:
        others = row.get("not_by")
        if (
            quantization in row["of"]
            and re.fullmatch(row["family"], geometry.model_type)
            and row.get("moe", geometry.is_moe) == geometry.is_moe
            and geometry.name.startswith(row.get("by", ""))
            and not (others and geometry.name.startswith(others))
        ):
            return cast(dict[str, Any], row)
    return {}


def must_be_known(quantization: str) -> Quantization:
    """A quantization by name.

    Raises:
        UsageError: there is none of that name.
    """
    for known in BYTES:
        if known == quantization.lower():
            return known
    raise UsageError(
        f"no quantization '{quantization}'", hint=did_you_mean(quantization, list(BYTES), "names")
    )


def weights_of(geometry: Geometry, quantization: Quantization) -> StoredWeights:
    """The weights in memory, by part: from the checkpoint's tensors where they are at hand and lie
    in this quantization (or become it while they are loaded), else from the shape. With what vLLM
    loads twice, without the tables of positions (`Geometry.tables_bytes`).

    Raises:
        UsageError: the tensors are not at hand, and the shape does not say it either: its config
            has keys that bear on size and are not known here.
    """
    return _with_copied_keys(geometry, _of_checkpoint(geometry, quantization))


def _of_checkpoint(geometry: Geometry, quantization: Quantization) -> StoredWeights:
    stored = geometry.stored
    if stored is not None and stored.quantization == quantization:
        return stored
    if stored is not None and quantization == "fp8-online" and stored.quantization == "bf16":
        return stored.quantized_online()
    return _computed(geometry, quantization)


def _with_copied_keys(geometry: Geometry, weights: StoredWeights) -> StoredWeights:
    """Add the weights of values that are the keys': vLLM loads them into both places of one matrix
    (`Gemma4Attention.qkv_proj`), and every step reads both.
    """
    copied = sum(
        (part.layers - part.borrowed) * part.kv_heads * part.value_dim * geometry.hidden
        for part in geometry.attention
        if part.k_is_v
    )
    own = weights.part("attention")
    if not copied or not own.parameters:
        return weights
    more = copied * own.bytes / own.parameters
    parts = (
        replace(part, bytes=part.bytes + more) if part.name == "attention" else part
        for part in weights.parts
    )
    return replace(weights, parts=tuple(parts))


def _computed(geometry: Geometry, quantization: Quantization) -> StoredWeights:
    if geometry.not_understood:
        raise _size_not_known(geometry)
    lies, experts = formats(geometry, quantization), geometry.experts
    parts = []
    for name, number in parameters(geometry).items():
        if number:
            label = lies.get(name, "bf16")
            size = number * BYTES[label]
            whole = size if name in REPLICATED else 0.0
            parts.append(StoredPart(name, number, size, whole, label))
    return StoredWeights(
        tuple(parts),
        quantization,
        experts=experts.count if experts else 0,
        top_k=experts.top_k if experts else 0,
        tied=geometry.tied,
    )


def _size_not_known(geometry: Geometry) -> UsageError:
    keys = ", ".join(repr(key) for key in geometry.not_understood[:SHOWN_KEYS])
    return UsageError(
        f"the size of {geometry.name} is not known: its config has {keys}, which nothing here "
        "understands, and its tensors are not at hand",
        hint="without --offline they are looked up on the hub; or give the folder with its files",
    )


def memory_bytes(geometry: Geometry, quantization: Quantization) -> float:
    """Return the bytes that the loaded weights take, on all nodes together, without MTP layers and
    the tables of positions.

    A server's log shows up to 1 % more with both counted (biases, and memory that PyTorch rounds up
    to 2 MiB a matrix), for NVFP4 2 % (scales of scales, padding for the kernels). What was measured
    is better; see `Launch.weights_gib`.
    """
    return weights_of(geometry, quantization).memory_bytes()


def drafter_bytes(drafter: Geometry | None) -> float:
    """Return the bytes of a drafter's weights; an unknown one is left out: they are small."""
    if drafter is None:
        return 0.0
    quantization = drafter.stored.quantization if drafter.stored else "bf16"
    with contextlib.suppress(UsageError):
        return memory_bytes(drafter, must_be_known(quantization))
    return 0.0


def load_peak_bytes(geometry: Geometry, quantization: Quantization) -> float:
    """Most that the weights take while they are loaded, on all nodes together.

    Online quantization reads the BF16 weights first: 58 GiB for the 31B before it is 29
    (source: forum-gemma4-31b-fp8).
    """
    first: Quantization = "bf16" if quantization == "fp8-online" else quantization
    return memory_bytes(geometry, first)


# The formats in which a launch serves a model: by its checkpoint, and by its flags.


def quantization_of(launch: Launch, geometry: Geometry) -> Quantization:
    """Return how the weights of a launch lie in memory.

    Raises:
        UsageError: it is not known here.
    """
    if launch.quantization and geometry.stored is None:  # tensors know better than names
        return launch.quantization
    found = checkpoint_quantization(geometry)
    online = launch.quantization == "fp8-online" or launch.args.get("quantization") == "fp8"
    return "fp8-online" if found == "bf16" and online else found


def checkpoint_quantization(geometry: Geometry) -> Quantization:
    """Return the quantization by the model's own config; BF16 when it names none.

    Raises:
        UsageError: it says something that is not known here.
    """
    stored = geometry.stored
    name = geometry.quantization or "bf16" if stored is None else stored.quantization
    try:
        return must_be_known(name)
    except UsageError:
        if stored is not None:
            raise
        said = f"the config of {geometry.name} says its quantization is '{geometry.quantization}'"
        if geometry.quantization == NOT_SAID:
            said = f"the name {geometry.name} says that its weights are quantized, but not how"
        raise UsageError(
            f"{said}: their size and speed are not known here",
            hint="its tensors would tell: without --offline they are read from the hub; or give "
            f"the nearest with --quantization: {', '.join(BYTES)}",
        ) from None


def checkpoint_kv_dtype(name: str, quantization: Quantization, geometry: Geometry) -> str:
    """Return what `--kv-cache-dtype auto` becomes.

    The checkpoint decides where its config is at hand. NVIDIA's NVFP4 builds ask for FP8 (seen in
    the log of Gemma-4-31B NVFP4 on a single DGX Spark), also when only the model that they are
    built from is known.
    """
    nvidia = quantization == "nvfp4" and name.startswith("nvidia/")
    if geometry.kv_dtype is None and geometry.quantization is None and nvidia:
        return "fp8"
    return geometry.kv_dtype or "auto"
