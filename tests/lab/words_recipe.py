"""The lab's recipe with the embedding model (`word_model`), as one of a kind."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import word_model
from ruamel.yaml import YAML

NAME = "lab-words"
SHIPPED = Path(__file__).parents[2] / "recipes/lab-paris.yaml"


def recipe(kind: str, **changed: Any) -> dict[str, Any]:
    """Return it as data.

    Args:
        changed: keys that replace its own.
    """
    data: dict[str, Any] = YAML(typ="safe").load(SHIPPED.read_text())
    del data["probe"]
    flags = {**data["engine_args"], "runner": "pooling", "max-model-len": word_model.CONTEXT}
    model = {
        "name": "words",
        "source": "directory",
        "directory": "words",
        "path": "/srv/models/words",
        "served_name": "words",
    }
    given = {"name": NAME, "kind": kind, "model": model, "engine_args": flags}
    return {**data, **given, "readiness": {}, **changed}
