"""Rules on the kind of a model: what a recipe says, against its flags and the model's config."""

from __future__ import annotations

from spark_cluster.config import model_kind
from spark_cluster.config.model_kind import ModelKind
from spark_cluster.known_issues.case import Case
from spark_cluster.known_issues.rules import RuleContext, RuleResult, rule


@rule("kind-contradicts-model")
def contradicts_model(about: RuleContext, case: Case) -> RuleResult:
    kind = case.launch.kind
    asked = model_kind.of_flags(case.flags)
    if asked is not None:
        if _goes(kind, asked):
            return None
        return about.found(f"kind: {kind}, and the flags are of {asked}")
    if case.launch.origin == "command":  # it says no kind: what it is read as was a guess
        return None
    architectures = case.geometry.architectures if case.geometry is not None else ()
    shown = model_kind.of_architectures(architectures)
    if shown is None or _goes(kind, shown):
        return None
    return about.found(f"kind: {kind}, and {architectures[0]} is of {shown}")


@rule("kind-not-served")
def not_served(about: RuleContext, case: Case) -> RuleResult:
    kind = case.launch.kind
    return None if kind in model_kind.RUNGS else about.found(f"kind: {kind}")


def _goes(kind: ModelKind, shown: ModelKind) -> bool:
    """Return whether a server of one kind can be verified as another.

    An embedding model reranks too, by the cosine; and `--runner pooling` alone, which is read as
    embedding, is how a reranker is served.
    """
    return kind == shown or (kind, shown) == ("reranking", "embedding")
