"""The document of `predict speed`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated

from pydantic import Field

from spark_cluster.bench.references import own_evidence
from spark_cluster.cli.app import App
from spark_cluster.config.document import Document, Hidden, Rounded, derived, printed
from spark_cluster.config.launch import Launch, of_recipe
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipes import load_recipe
from spark_cluster.errors import UsageError
from spark_cluster.models.find import find
from spark_cluster.models.hub.lookup import Hub
from spark_cluster.models.memory import GIB, RESERVE_GIB
from spark_cluster.models.weights import checkpoint_kv_dtype, checkpoint_quantization, must_be_known
from spark_cluster.plan.estimate import Estimate
from spark_cluster.plan.evidence import ComparedEvidence, Evidence, by_others
from spark_cluster.plan.room import assumed
from spark_cluster.plan.serving import ServingSetup, serving_of
from spark_cluster.plan.speed import Decode, Prefill, Speculative

MS = 1e3


@dataclass(frozen=True)
class PredictedSpeed(Document):
    """The question, and the predicted speeds.

    Attributes:
        evidence: what was measured of it.
        too_large: why it does not fit; empty when it does, as far as its weights say.
    """

    recipe: str | None
    model: str
    quantization: str
    kv_dtype: str
    tp: int
    prompt: int
    cached: int
    context: int
    concurrency: int
    plain: Hidden[Decode]
    first: Hidden[Prefill]
    drafted: Hidden[Speculative | None]
    evidence: Hidden[Evidence | None] = None
    too_large: Annotated[str, Field(serialization_alias="why_not")] = ""
    bytes_per_token = derived(Annotated[float, Rounded()], "plain.bytes_per_token")
    fits = derived(bool, lambda found: not found.too_large)

    decode_tok_s = derived(Estimate | None, lambda one: one.known(one.plain.request))
    total_tok_s = derived(Estimate | None, lambda one: one.known(one.plain.total))
    prefill_tok_s = derived(Estimate | None, lambda one: one.known(one.first.tokens_s, 0))
    ttfr_ms = derived(Estimate | None, lambda one: one.known(one.first.seconds.times(MS), 0))
    speculative = derived(Speculative | None, lambda one: None if one.too_large else one.drafted)

    def known(self, found: Estimate, digits: int = 2) -> Estimate | None:
        """Return a figure as it is printed; None where the model does not fit."""
        return None if self.too_large else found.rounded(digits)

    @printed
    def measured(self) -> ComparedEvidence | None:
        """What was measured, next to the prediction."""
        if self.evidence is None or self.too_large:
            return None
        return self.evidence.beside((self.drafted or self.plain).request)

    @printed
    def basis(self) -> dict[str, str]:
        """Return what each figure is based on."""
        found = {"decode": self.plain.basis, "prefill": self.first.basis}
        drafted = {} if self.drafted is None else {"speculative": self.drafted.basis}
        return {**found, **drafted}


# The options of `predict` that say what is served.


def served_by(
    app: App, given: Mapping[str, str | None], hub: Hub | None = None
) -> tuple[Recipe | None, ServingSetup]:
    """Return the recipe, if one is named, and what is served by the options.

    Args:
        hub: where the model is looked up; None: what is kept on this machine.

    Raises:
        UsageError: they contradict each other, or name what is not known.
    """

    recipe, model, tp = given.get("recipe"), given.get("model"), int(given["tp"] or 1)
    asked, kv_dtype = given.get("quantization"), given.get("kv_dtype")
    if (recipe is None) == (model is None):
        raise UsageError(
            "found both --recipe and --model" if recipe else "give --model or --recipe",
            hint="--recipe NAME is a recipe; --model NAME|DIR a model on the hub or in a folder",
        )
    if recipe is not None:
        if asked or kv_dtype:
            raise UsageError("--quantization and --kv-dtype need --model; a recipe sets its own")
        known = load_recipe(recipe, app.project)
        return known, serving_of(known, tp, app.project.folder, hub=hub)
    geometry = find(str(model), app.project.folder, hub=hub)
    quantization = must_be_known(asked) if asked else checkpoint_quantization(geometry)
    kv_dtype = kv_dtype or checkpoint_kv_dtype(str(model), quantization, geometry)
    return None, ServingSetup(geometry, quantization, kv_dtype, tp)


def evidence_of(
    app: App,
    recipe: Recipe | None,
    serving: ServingSetup,
    *,
    many: int,
    context: float,
    drafts: int,
) -> Evidence | None:
    """Return what was measured of it, by the user's own runs first.

    Args:
        many: requests at a time.
        drafts: tokens drafted in a step.
    """

    own = None
    launch = of_recipe(recipe, serving.tp) if recipe else Launch(serving.geometry.name)
    if recipe or not drafts:
        plain = replace(launch, tp=serving.tp, quantization=serving.quantization)
        own = own_evidence(app.project, launch if recipe else plain, many, context)
    return own or by_others(launch, serving, users=many, context=context, drafted=drafts)


def too_large(serving: ServingSetup) -> str:
    """Return why the weights do not fit an idle Spark; empty when they do."""

    (room,) = assumed(1)
    size = serving.weights.memory_bytes(serving.tp) / GIB
    if size + RESERVE_GIB <= room.available_gib:
        return ""
    each = " a node" if serving.tp > 1 else ""
    return (
        f"the weights take {size:.0f} GiB{each}, and an idle Spark has {room.available_gib:.0f} "
        f"available, of which the system keeps {RESERVE_GIB:g}"
    )
