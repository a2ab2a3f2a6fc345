"""What a model file of vllm-project/recipes is for, where it is not text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

GENERATES = {
    "tts": "speech",
    "t2a": "speech",
    "t2i": "images",
    "i2i": "images",
    "t2v": "video",
    "i2v": "video",
    "ti2v": "video",
}
"""Tasks in that project's words (taxonomy.yaml, and `omni.tasks` of its files)."""


def generates(data: Mapping[str, Any]) -> str:
    """Return what a model file's model generates: speech, images or video; empty for text."""
    omni, meta = data.get("omni"), data.get("meta")
    asked = omni.get("tasks") if isinstance(omni, dict) else None
    named = meta.get("tasks") if isinstance(meta, dict) else None
    found = (GENERATES[task] for task in (*_names(asked), *_names(named)) if task in GENERATES)
    return next(found, "")


def _names(tasks: object) -> list[str]:
    if not isinstance(tasks, list):
        return []
    return [str(t.get("id") if isinstance(t, dict) else t).lower() for t in tasks]
