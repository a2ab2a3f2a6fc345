"""Models whose shapes are known, written down by hand (`data/known_shapes.json`), and the published
runs."""

from functools import cache
from typing import Any

from cases import cases
from pydantic import TypeAdapter

from spark_cluster.models.shape import Geometry

SHAPES = TypeAdapter(dict[str, Geometry]).validate_python(cases(__file__, "data/known_shapes.json"))
GEMMA_31B, GEMMA_26B, LLAMA_70B, DEEPSEEK_LITE, HYBRID = EVERY = tuple(SHAPES.values())
MODELS = {"31B": GEMMA_31B, "26B": GEMMA_26B}


@cache
def published() -> list[dict[str, Any]]:
    """The published runs."""
    return cases(__file__, "data/published_points.json")["points"]
