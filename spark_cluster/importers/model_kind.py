"""What a model is for, as far as another tool's file or the flags of a command say it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from spark_cluster.config.launch import Launch

_TASKS = {
    "embedding": "embedding",
    "embed": "embedding",
    "rerank": "reranking",
    "reranking": "reranking",
    "score": "reranking",
    "classify": "reranking",
    "transcription": "transcription",
    "asr": "transcription",
    "tts": "speech",
    "t2a": "speech",
    "t2i": "image",
    "i2i": "image",
    "t2v": "video",
    "i2v": "video",
}
"""Names of tasks (taxonomy.yaml of vllm-project/recipes, vLLM's --task and --convert)."""

_NAMES = (
    (re.compile(r"rerank", re.IGNORECASE), "reranking"),
    (re.compile(r"embed(?!ded)|\bbge-|\bgte-|\be5-", re.IGNORECASE), "embedding"),
    (re.compile(r"whisper|[-_]asr\b", re.IGNORECASE), "transcription"),
    (re.compile(r"[-_]tts\b", re.IGNORECASE), "speech"),
)
"""Of repositories, where nothing else says it."""


def of_recipe(data: Mapping[str, Any]) -> str:
    """Return the kind by a model file's tasks; `chat` for text and what is not known."""
    omni = data.get("omni")
    asked = omni.get("tasks") if isinstance(omni, dict) else None
    meta = data.get("meta")
    named = meta.get("tasks") if isinstance(meta, dict) else None
    for task in [*_listed(asked), *_listed(named)]:
        if task in _TASKS:
            return _TASKS[task]
    return "chat"


def _listed(tasks: object) -> list[str]:
    if not isinstance(tasks, list):
        return []
    return [str(t.get("id") if isinstance(t, dict) else t).lower() for t in tasks]


def of_launch(launch: Launch) -> str:
    """Return the kind by the flags, or by the model's name; `chat` for what is not known."""
    for flag in ("task", "convert"):
        kind = _TASKS.get(launch.text(flag).lower())
        if kind:
            return kind
    names = f"{launch.model} {launch.base or ''}"
    found = next((kind for pattern, kind in _NAMES if pattern.search(names)), "chat")
    if launch.text("runner") == "pooling" and found == "chat":
        return "embedding"
    return found
