"""Rules on the model: its shape, its checkpoint, its drafter, by image and version."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.version import Version

from spark_cluster.config import recipe_schema
from spark_cluster.config.facts import Facts
from spark_cluster.config.recipe_schema import ModelKind
from spark_cluster.issues.entries import Edit
from spark_cluster.issues.rules import Case, RuleFinding, rule
from spark_cluster.models.memory_share import (
    GIB,
    GIB_KIB,
    HIGHEST,
    gate_gib,
    margins,
    utilization,
)
from spark_cluster.models.naming import table
from spark_cluster.models.weights import load_peak_bytes

NATIVE_FP4 = ("0.19", "0.21.dev0", "0.24")
"""From and below which version native FP4 experts are known to give garbage, and from which they
are known to be right and faster than Marlin on GB10. Between: reports disagree, so a question
decides (readiness rung `answer`)."""

_FILE = tomllib.loads(Path(__file__).with_name("quantizers.toml").read_text(encoding="utf-8"))
FORMATS, SAME, EXCLUDES = (_FILE[name] for name in ("formats", "same", "excludes"))

MODELS = table("vllm_models", "issues")
"""Architectures with the first vLLM that has a class for them and the first without it, and the
same of those that do not take LoRA adapters or pipeline stages; connectors that do not know several
kinds of layers."""

KINDS = re.compile(r"_(text|mm_model)$|_")
"""What the name of a class has not of the type of its model."""

VISION_TOKENS = 2496
"""Of one image in Gemma 4, at most (vLLM's own message)."""

SPLITS_IMAGES_BEFORE = Version("0.20")
"""Before it vLLM divided an image over steps: the articles ran with the default of 2048."""


@rule("nvfp4-moe-native-kernels")
def native_fp4_experts(case: Case) -> RuleFinding | None:
    backend = case.launch.text("moe-backend").lower() or "vLLM's own choice"
    forced = case.launch.env.get("VLLM_USE_FLASHINFER_MOE_FP4") == "0"
    low, high, right = map(Version, NATIVE_FP4)
    version = case.version or high
    taken = backend in ("marlin", "emulation") or (forced and backend == "vLLM's own choice")
    if taken or version >= right:
        return None
    found = f"experts in NVFP4 by {backend}" + (f" in {case.image}" if case.image else "")
    if low <= version < high:
        return RuleFinding(found)
    return RuleFinding(
        found,
        severity="info",
        and_also="; to vLLM 0.23 reports disagree, so a question must decide",
        fix="--moe-backend marlin when an answer is garbage (`spark-cluster up` asks for one)",
    )


@rule("quantization-twice")
def quantization_twice(case: Case) -> RuleFinding | None:
    asked = case.launch.text("quantization")
    if not asked:
        return None
    model = case.launch.model
    made_by = next((f for f, names in FORMATS.items() if case.matches(names, [model])), None)
    if made_by is not None and asked not in SAME[made_by]:
        return RuleFinding(f"--quantization {asked}, and {model} is {made_by}")
    kind: str | None = case.launch.quantization
    if case.geometry is not None and case.launch.base is None:  # of a pasted line, it is the flag
        kind = case.geometry.quantization or kind
    if kind in EXCLUDES.get(asked.removesuffix("_marlin"), ()):
        return RuleFinding(f"--quantization {asked}, and {model} is {kind}")
    return None


@rule("gemma4-mtp-drafter-bugs")
def drafter_bugs(case: Case) -> RuleFinding | None:
    chosen = "mtp" if case.matches(["*-assistant"], case.drafters) else ""
    method = str(case.launch.speculative.get("method", chosen))
    if case.launch.dockerfile or method not in ("mtp", "gemma4_mtp"):
        return None
    target = "/model_executor/models/gemma4_mtp.py"
    if any(v.target.endswith(target) for v in case.launch.volumes):
        return None
    return RuleFinding(f'"method":"{method}" in {case.image or "this image"}')


@rule("latent-cache-and-drafter")
def latent_cache_and_drafter(case: Case) -> RuleFinding | None:
    found = RuleFinding(f"--kv-cache-dtype fp8_ds_mla, drafts by {case.drafters[0]}")
    return None if "kv_cache_dtype" in case.launch.speculative else found


@rule("connector-and-hybrid-cache")
def connector_and_hybrid_cache(case: Case) -> RuleFinding | None:
    name = recipe_schema.json_object(case.launch.args["kv-transfer-config"]).get("kv_connector")
    return RuleFinding(f"{name}, {case.names[0]}") if name in MODELS["one_kind_of_layer"] else None


def _architectures(case: Case) -> list[str]:
    """Return the architecture of the registry that the model is, or those that its type lets one
    think; none where nothing tells, or where it is overridden."""
    if case.geometry is None or {"hf-overrides", "model-impl"} & case.flags.keys():
        return []
    own = [name for name in case.geometry.architectures if name in MODELS["architectures"]]
    kind = KINDS.sub("", case.family)
    known = MODELS["architectures"] if kind and not own else ()
    return own[:1] or [name for name in known if name.lower().replace("_", "").startswith(kind)]


@rule("model-newer-than-vllm")
def model_newer_than_vllm(case: Case) -> RuleFinding | None:
    """A model without a class in the release; of a plain one Transformers may have it."""
    known, shape = MODELS["architectures"], case.geometry
    names = sorted(_architectures(case), key=lambda name: Version(known[name][0] or "0"))
    told = [case.outside(f"{name} of {case.names[0]}", known[name]) for name in names]
    if shape is None or not names or not all(told):
        return None
    is_plain = "ForCausalLM" in names[0] and not (shape.is_moe or shape.recurrent or shape.latent)
    is_certain = case.version is not None and not (is_plain or case.built_by_owner)
    return RuleFinding(told[0], severity="error" if is_certain else "warning")


@rule("pipeline-not-supported")
def stages_not_supported(case: Case) -> RuleFinding | None:
    return _not_done("stages", f"--pipeline-parallel-size {case.launch.pp}", case)


@rule("lora-not-supported")
def lora_not_supported(case: Case) -> RuleFinding | None:
    return _not_done("lora", "--enable-lora", case)


def _not_done(ability: str, asked: str, case: Case) -> RuleFinding | None:
    """Return the finding on what no class of the release that the model may be does."""
    names, without = _architectures(case), MODELS[f"without_{ability}"]
    lacking = [name for name in names if name in without and not case.outside("", without[name])]
    if not names or lacking != names or (case.version and case.version.is_prerelease):
        return None
    until, gone = without[names[0]][1], MODELS["architectures"][names[0]][1]
    found = f"{asked}, {names[0]}" + (f"; vLLM {until} can do it" if until != gone else "")
    certain = case.version is not None and not case.built_by_owner
    return RuleFinding(found, severity="error" if certain else "warning")


@rule("mtp-method-renamed")
def method_renamed(case: Case) -> RuleFinding | None:
    if case.launch.speculative.get("method") != "gemma4_mtp":
        return None
    config = {**case.launch.speculative, "method": "mtp"}
    return RuleFinding('"method":"gemma4_mtp"', edit=Edit("flag", "speculative-config", config))


@rule("gemma4-batched-tokens-vision")
def batched_tokens_for_an_image(case: Case) -> RuleFinding | None:
    batched = case.launch.number("max-num-batched-tokens")
    if case.version is None or case.version < SPLITS_IMAGES_BEFORE or batched is None:
        return None
    if batched >= VISION_TOKENS:
        return None
    edit = Edit("flag", "max-num-batched-tokens", 4096)
    return RuleFinding(
        f"--max-num-batched-tokens {batched:g}, one image {VISION_TOKENS}", edit=edit
    )


@rule("context-beyond-model")
def context_beyond_model(case: Case) -> RuleFinding | None:
    length, shape = case.launch.number("max-model-len"), case.geometry
    if length is None or shape is None or not shape.max_positions:
        return None
    if length <= shape.max_positions:
        return None
    return RuleFinding(
        f"--max-model-len {length:g}, the model has {shape.max_positions}",
        edit=Edit("flag", "max-model-len", shape.max_positions),
    )


@rule("heads-do-not-divide")
def heads_do_not_divide(case: Case) -> RuleFinding | None:
    tp, shape = case.launch.tp, case.geometry
    if shape is None or tp < 2:
        return None
    for part in shape.attention:
        if part.q_heads % tp:
            return RuleFinding(f"{part.q_heads} query heads, --tensor-parallel-size {tp}")
        if part.kv_heads % tp and tp % part.kv_heads:
            return RuleFinding(f"{part.kv_heads} KV heads, --tensor-parallel-size {tp}")
    if shape.latent is not None and shape.latent.q_heads % tp:
        return RuleFinding(f"{shape.latent.q_heads} query heads, --tensor-parallel-size {tp}")
    return None


# Rules on the kind of a model: what a recipe says, against its flags and the model's config.


@rule("kind-contradicts-model")
def contradicts_model(case: Case) -> RuleFinding | None:
    kind = case.launch.kind
    asked = recipe_schema.kind_of_flags(case.flags)
    if asked is not None:
        if _goes(kind, asked):
            return None
        return RuleFinding(f"kind: {kind}, and the flags are of {asked}")
    if case.launch.origin == "command":  # it says no kind: what it is read as was a guess
        return None
    architectures = case.geometry.architectures if case.geometry is not None else ()
    shown = recipe_schema.kind_of_architectures(architectures)
    if shown is None or _goes(kind, shown):
        return None
    return RuleFinding(f"kind: {kind}, and {architectures[0]} is of {shown}")


@rule("kind-not-served")
def not_served(case: Case) -> RuleFinding | None:
    kind = case.launch.kind
    return None if kind in recipe_schema.CHECKS_OF_KIND else RuleFinding(f"kind: {kind}")


def _goes(kind: ModelKind, shown: ModelKind) -> bool:
    """Return whether a server of one kind can be verified as another.

    An embedding model reranks too, by the cosine; and `--runner pooling` alone, which is read as
    embedding, is how a reranker is served.
    """
    return kind == shown or (kind, shown) == ("reranking", "embedding")


# Rules on memory, which GPU and system of a Spark share.

IMPOSSIBLE = 0.97
"""No Spark has so much free: of 121.7 GiB an idle one without a desktop has about 117 available
(source: measured-on-gb10). Less than that has served somewhere, so that it is a warning; safe is
`memory.HIGHEST`."""

DEFAULT = 0.92
"""What vLLM takes when it is told nothing (older ones 0.90)."""

TOTAL_GIB = 121.69
"""Of a Spark on current firmware; nodes that can be asked tell their own."""


@rule("share-too-high")
def share_too_high(case: Case) -> RuleFinding | None:
    share = case.launch.number("gpu-memory-utilization")
    if share is None:
        return None
    for facts in case.facts:
        if facts.gpu_memory.total_kib and share > utilization(facts.gpu_memory):
            return _more_than_there_is(share, facts)
    if share <= HIGHEST or any(facts.gpu_memory.of_gpu for facts in case.facts):
        return None
    wanted = share * TOTAL_GIB
    found = f"--gpu-memory-utilization {share:g} is {wanted:.1f} of {TOTAL_GIB:.1f} GiB"
    return RuleFinding(
        found,
        severity="warning" if share < IMPOSSIBLE else "error",
        edit=Edit("flag", "gpu-memory-utilization", HIGHEST),
    )


def _more_than_there_is(share: float, facts: Facts) -> RuleFinding | None:
    """Compare a share with the memory of the nodes that were asked."""
    memory = facts.gpu_memory
    can = utilization(memory)
    total, available = memory.total_kib / GIB_KIB, memory.available_kib / GIB_KIB
    refused = share * total > gate_gib(memory)
    fix = f"--gpu-memory-utilization {can:g}, with which the node still answers when it is loaded"
    return RuleFinding(
        f"--gpu-memory-utilization {share:g} wants {share * total:.1f} GiB, "
        f"{facts.hostname or 'the node'} has {available:.1f} available",
        severity="error" if refused else "warning",
        edit=Edit("flag", "gpu-memory-utilization", can) if can else None,
        fix=fix if can else "stop what holds the memory: spark-cluster vram names it",
    )


@rule("share-not-given")
def share_not_given(case: Case) -> RuleFinding | None:
    for facts in case.facts:
        memory = facts.gpu_memory
        total, free = memory.total_kib / GIB_KIB, memory.available_kib / GIB_KIB
        if total and DEFAULT * total > gate_gib(memory):
            name = facts.hostname or "the node"
            found = f"{DEFAULT:g} of {total:.1f} GiB, {name} has {free:.1f} available"
            return RuleFinding(found, severity="error")
    if any(facts.gpu_memory.of_gpu for facts in case.facts):
        return None
    return RuleFinding("no --gpu-memory-utilization")


@rule("online-fp8-load-peak")
def online_fp8_load_peak(case: Case) -> RuleFinding | None:
    if case.geometry is None:
        return RuleFinding(f"--quantization {case.launch.text('quantization') or 'fp8'}")
    part = load_peak_bytes(case.geometry, "fp8-online") / GIB / case.launch.tp
    found = f"{part:.1f} GiB of BF16 weights on each node while loading"
    for facts in case.facts:
        memory = facts.gpu_memory
        available = memory.available_kib / GIB_KIB
        if memory.total_kib and part + margins(memory).reserve_gib > available:
            name = facts.hostname or "the node"
            return RuleFinding(f"{found}, {name} has {available:.1f} available", severity="error")
    return RuleFinding(found)
