"""Kinds of models by what they answer, how a launch shows them, and what shows that each works."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
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

_FILE: dict[ModelKind, dict[str, Any]] = tomllib.loads(  # type: ignore[assignment]
    Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
)
CHECKS_OF_KIND: Mapping[ModelKind, tuple[ReadinessCheck, ...]] = {
    kind: tuple(_FILE[kind]["checks"]) for kind in KINDS if "checks" in _FILE[kind]
}
"""The readiness checks that a kind has, its default first; a kind without any is not served."""

NOT_SERVED: Mapping[ModelKind, str] = {
    kind: _FILE[kind]["instead"] for kind in KINDS if "instead" in _FILE[kind]
}
"""What to use instead for the kinds that are recognised and refused."""

_TASKS = {task: kind for kind, about in _FILE.items() for task in about.get("tasks", ())}


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
    return next(filter(None, (_showing("architectures", name) for name in names)), None)


def _showing(what: str, text: str) -> ModelKind | None:
    """Return the first kind whose pattern is in a text."""
    known = ((kind, about[what]) for kind, about in _FILE.items() if what in about)
    return next((kind for kind, pattern in known if re.search(pattern, text)), None)


def of_name(name: str) -> ModelKind | None:
    """Return the kind that the last part of a repository's name shows; None when it does not."""
    last = name.rstrip("/").rpartition("/")[2].lower()
    return _showing("names", last)


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
