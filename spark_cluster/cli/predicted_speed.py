"""The document of `predict speed`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from spark_cluster.bench.planned_speed import own_evidence
from spark_cluster.cli.app import App
from spark_cluster.config.launch import Launch, of_recipe
from spark_cluster.config.recipe import Recipe
from spark_cluster.errors import UsageError
from spark_cluster.loader.recipes import load_recipe
from spark_cluster.models.find import find
from spark_cluster.models.hub.lookup import Hub
from spark_cluster.models.memory import GIB, RESERVE_GIB
from spark_cluster.models.weights import checkpoint_kv_dtype, checkpoint_quantization, must_be_known
from spark_cluster.planning.evidence import Case, Evidence, own_first
from spark_cluster.planning.room import assumed
from spark_cluster.planning.speed.decode import Decode
from spark_cluster.planning.speed.of_recipe import serving_of
from spark_cluster.planning.speed.prefill import Prefill
from spark_cluster.planning.speed.serving import Serving
from spark_cluster.planning.speed.speculative import Speculative

MS = 1e3


@dataclass(frozen=True)
class PredictedSpeed:
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
    plain: Decode
    first: Prefill
    drafted: PredictedDrafter | None
    evidence: Evidence | None = None
    too_large: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the document of `predict speed --json`."""
        plain, first, drafted = self.plain, self.first, self.drafted
        best, evidence = (drafted.found if drafted else plain).request, self.evidence
        fits = not self.too_large
        return {
            "recipe": self.recipe,
            "model": self.model,
            "quantization": self.quantization,
            "kv_dtype": self.kv_dtype,
            "tp": self.tp,
            "prompt": self.prompt,
            "cached": self.cached,
            "context": self.context,
            "concurrency": self.concurrency,
            "decode_tok_s": plain.request.to_dict() if fits else None,
            "total_tok_s": plain.total.to_dict() if fits else None,
            "bytes_per_token": round(plain.bytes_per_token),
            "prefill_tok_s": first.tokens_s.to_dict(0) if fits else None,
            "ttfr_ms": first.seconds.times(MS).to_dict(0) if fits else None,
            "speculative": drafted.to_dict() if drafted and fits else None,
            "measured": evidence.to_dict(best) if evidence and fits else None,
            "fits": fits,
            "why_not": self.too_large,
            "basis": self.basis(),
        }

    def basis(self) -> dict[str, str]:
        """Return what each figure is based on."""
        found = {"decode": self.plain.basis, "prefill": self.first.basis}
        drafted = {} if self.drafted is None else {"speculative": self.drafted.found.basis}
        return {**found, **drafted}


@dataclass(frozen=True)
class PredictedDrafter:
    """The predicted speeds with a drafter."""

    found: Speculative

    def to_dict(self) -> dict[str, Any]:
        """Return the value of `speculative` in `predict speed --json`."""
        found = self.found
        return {
            "decode_tok_s": found.request.to_dict(),
            "total_tok_s": found.total.to_dict(),
            "tokens_per_step": round(found.tokens_per_step, 2),
            "gain": round(found.gain, 2),
        }


# The options of `predict` that say what is served.


def served_by(
    app: App, given: Mapping[str, str | None], hub: Hub | None = None
) -> tuple[Recipe | None, Serving]:
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
    return None, Serving(geometry, quantization, kv_dtype, tp)


def evidence_of(
    app: App, recipe: Recipe | None, serving: Serving, *, many: int, context: float, drafts: int
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
    names = (launch.model, launch.base or "")
    return own_first(own, Case(names, serving, many, context, drafts))


def too_large(serving: Serving) -> str:
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
