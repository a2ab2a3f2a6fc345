"""Ranges by situation, and how far measured models are off the formulas.

The file is written by `python -m benchmarks.predictions --write` from the measurements in
`planning/data`; nothing in it is chosen by hand.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from spark_cluster.planning.speed.serving import Serving

NAME = "fitted.json"


@dataclass(frozen=True)
class Correction:
    """How much faster than by the formulas a model is that was measured.

    Attributes:
        factor: measured over predicted, drawn towards 1 where few sources measured it.
        known: the model was measured in this situation.
    """

    factor: float = 1.0
    known: bool = False


def correction(serving: Serving, situation: str) -> Correction:
    """Return what is known of a model in a situation (`decode`, `tp`, `drafter` or `prefill`)."""
    found = _read()["models"].get(f"{layout(serving)} {situation}")
    return Correction(float(found), known=True) if found is not None else Correction()


def layout(serving: Serving) -> str:
    """Name a model by what its speed follows from: layers, widths, experts and formats.

    Builds that lie alike have one name, whoever made them.
    """
    geometry, experts = serving.geometry, serving.geometry.experts
    formats = [
        serving.weights.part(name).format for name in ("attention", "mlp", "recurrent", "experts")
    ]
    kinds = sorted({each.replace("-online", "") for each in (*formats, *serving.mxfp4_layers)})
    count = f"-{experts.count}x{experts.top_k}" if experts else ""
    shape = f"{geometry.layers}x{geometry.hidden}{count}"
    return f"{geometry.model_type.removesuffix('_text')} {shape} {'+'.join(kinds)}"


def usual_range(situation: str, *, known_model: bool) -> tuple[float, float]:
    """Return how far below and above the expected figure measured ones lie, as shares of it."""
    found = _read()["ranges"][situation]["known" if known_model else "other"]
    return 1 - float(found[0]), float(found[1]) - 1


@cache
def _read() -> dict[str, Any]:
    text = (resources.files("spark_cluster.planning") / "data" / NAME).read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data
