"""Kinds of models by what they answer, how a launch shows them, and what shows that each works."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

from spark_cluster.errors import Refused

ModelKind = Literal["chat", "embedding", "reranking", "transcription", "speech", "image", "video"]
"""Chat includes completions and models that see pictures; reranking includes other scores."""

KINDS: tuple[ModelKind, ...] = get_args(ModelKind)

ReadinessCheck = Literal[
    "answer",
    "coherence",
    "tool_call",
    "reasoning",
    "vision",
    "short_answers",
    "logprobs",
    "tool_use",
    "structured_output",
    "concurrency",
    "context",
    "embedding",
    "reranking",
    "transcription",
]

CHECKS_OF_KIND: Mapping[ModelKind, tuple[ReadinessCheck, ...]] = {
    "chat": (
        "answer",
        "short_answers",
        "coherence",
        "logprobs",
        "tool_call",
        "tool_use",
        "reasoning",
        "vision",
        "structured_output",
        "concurrency",
        "context",
    ),
    "embedding": ("embedding",),
    "reranking": ("reranking",),
    "transcription": ("transcription",),
}
"""The rungs of readiness that a kind has, its default first; a kind without any is not served."""

NOT_SERVED: Mapping[ModelKind, str] = {
    "speech": "vllm-omni (docs.vllm.ai/projects/vllm-omni) or the model's own server",
    "image": "ComfyUI or diffusers, for which NVIDIA has playbooks (build.nvidia.com/spark)",
    "video": "ComfyUI or diffusers, for which NVIDIA has playbooks (build.nvidia.com/spark)",
}
"""What to use instead for the kinds that are recognised and refused."""

_TASKS: Mapping[str, ModelKind] = {
    "generate": "chat",
    "draft": "chat",
    "embed": "embedding",
    "embedding": "embedding",
    "classify": "reranking",
    "score": "reranking",
    "reward": "reranking",
    "transcription": "transcription",
}
"""Values of --task (vLLM before 0.13) and of --convert (vLLM 0.10 and later)."""

_ARCHITECTURES: tuple[tuple[str, ModelKind], ...] = (
    (r"Whisper|ForSpeechSeq2Seq|^Voxtral.*Realtime|ASR|Transcri", "transcription"),
    (r"For\w*Classification$|ClassificationModel$|ForRewardModel(ing)?$|RewardModel$", "reranking"),
    (r"EmbeddingModel$|ForTextEncoding$|^(?!.*For[A-Z]).*Bert\w*Model$", "embedding"),
    (r"TTS|TextToSpeech|ForTextToWaveform", "speech"),
    (r"(Video|Wan|HunyuanVideo|LTX)\w*Pipeline$", "video"),
    (r"Pipeline$|UNet2D|Flux\w*Transformer2D", "image"),
)
"""What an architecture of a config (or the class of a diffusers pipeline) shows; a *ForCausalLM
shows nothing: embedding models and rerankers have it too (Qwen3-Embedding, Qwen3-Reranker).
Source: vLLM's table of automatic conversions, docs.vllm.ai/en/latest/models/pooling_models."""

_NAMES: tuple[tuple[str, ModelKind], ...] = (
    (r"rerank", "reranking"),
    (r"embed|(?:^|[-_/])(?:bge|gte|e5)(?:[-_]|$)", "embedding"),
    (r"whisper|parakeet|canary|(?:^|[-_/])asr(?:[-_]|$)", "transcription"),
    (r"(?:^|[-_/])tts(?:[-_.]|$)|kokoro|vibevoice", "speech"),
    (r"(?:^|[-_/])(?:wan-?2|ltx-video|hunyuanvideo|cogvideo)", "video"),
    (r"(?:^|[-_/])flux[.\d]|stable-diffusion|sdxl|qwen-image|z-image", "image"),
)
"""What a repository's name shows where nothing else does."""


def of_flags(flags: Mapping[str, Any]) -> ModelKind | None:
    """Return the kind that an engine's flags (without dashes) ask for; None when none does."""
    for flag in ("task", "convert"):
        if found := _TASKS.get(str(flags.get(flag, "")).lower()):
            return found
    overridden = json_object(flags.get("hf-overrides")).get("architectures")
    if isinstance(overridden, list) and (found := of_architectures(map(str, overridden))):
        return found
    if flags.get("runner") == "generate":
        return "chat"
    pooling = flags.get("runner") == "pooling" or flags.get("is-embedding") is True
    return "embedding" if pooling else None


def of_architectures(names: Iterable[str]) -> ModelKind | None:
    """Return the kind that the architectures of a model's config show; None when none does."""
    for name in names:
        for pattern, kind in _ARCHITECTURES:
            if re.search(pattern, name):
                return kind
    return None


def of_name(name: str) -> ModelKind | None:
    """Return the kind that the last part of a repository's name shows; None when it does not."""
    last = name.rstrip("/").rpartition("/")[2].lower()
    return next((kind for pattern, kind in _NAMES if re.search(pattern, last)), None)


def inferred(flags: Mapping[str, Any], model: str, architectures: Iterable[str] = ()) -> ModelKind:
    """Return the kind of a launch: as its flags, else architectures, else name show; or chat.

    `--runner pooling` alone says only that it does not generate: an architecture or a name that
    says more goes before it.
    """
    asked = of_flags(flags)
    shown = of_architectures(architectures) or of_name(model)
    if asked == "embedding" and shown == "reranking" and not {"task", "convert"} & flags.keys():
        return shown
    return asked or shown or "chat"


def first_readiness_check(kind: object) -> ReadinessCheck:
    """Return the rung of a kind where a recipe names none; of what is no kind, that of chat."""
    return next((rungs[0] for name, rungs in CHECKS_OF_KIND.items() if name == kind), "answer")


def must_be_served(kind: ModelKind, what: str) -> None:
    """Look whether models of this kind are served at all.

    Args:
        what: the recipe or the model, for the message.

    Raises:
        Refused: they are not; with what to use instead.
    """
    if kind not in CHECKS_OF_KIND:
        raise Refused(
            f"{what} is of kind {kind}, which is not served here: `vllm serve` does not generate "
            f"{kind}, and no check could tell a right answer from a wrong one",
            hint=f"use {NOT_SERVED[kind]}; if the kind is inferred wrongly, write `kind: chat` "
            "(or another) into the recipe",
        )


def json_object(value: object) -> Mapping[str, Any]:
    """Return an argument that is an object, or the JSON text of one; empty for anything else."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            return {}
    return value if isinstance(value, dict) else {}
