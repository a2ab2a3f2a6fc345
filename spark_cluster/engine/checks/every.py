"""All checks, by the rungs of readiness."""

from __future__ import annotations

from collections.abc import Mapping

from spark_cluster.config.model_kind import RUNGS, ModelKind, Rung
from spark_cluster.engine import kind_rungs
from spark_cluster.engine.checks import (
    concurrency,
    context,
    logprobs,
    structured,
    texts,
    tools,
    vision,
)
from spark_cluster.engine.client import Check

_HOMES = (texts, logprobs, tools, vision, structured, concurrency, context, kind_rungs)
_EVERY = tuple(check for home in _HOMES for check in home.CHECKS)


def of_rung(rung: Rung) -> tuple[Check, ...]:
    """Return the checks of a rung; it holds when all of them do."""
    return BY_RUNG[rung]


def of_kind(kind: ModelKind) -> tuple[Check, ...]:
    """Return every check of a kind of model, in the order of its rungs."""
    return tuple(check for rung in RUNGS[kind] for check in of_rung(rung))


BY_RUNG: Mapping[Rung, tuple[Check, ...]] = {
    rung: tuple(check for check in _EVERY if check.rung == rung)
    for rung in dict.fromkeys(rung for rungs in RUNGS.values() for rung in rungs)
}
