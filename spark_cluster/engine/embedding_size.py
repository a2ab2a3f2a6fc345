"""The size of a model's embeddings, as its own files on the node say it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from spark_cluster.node import replies

if TYPE_CHECKING:
    from spark_cluster.config.recipe import Recipe
    from spark_cluster.engine.client import Client
    from spark_cluster.runner.session import Session

_KEYS = ("hidden_size", "projection_dim", "d_model", "n_embd", "embedding_size")
"""Keys of a config that can be an embedding's size; encoders with a projection have two of them."""


def expecting(client: Client, session: Session, recipe: Recipe) -> Client:
    """Return the client with what the recipe and the model's files let one expect."""
    folder = recipe.model.node_path
    paths = {"config": f"{folder}/config.json", "modules": f"{folder}/modules.json"}
    files = session.request("gather", files=paths)["files"]
    dense = {path: f"{folder}/{path}/config.json" for path in dense_folders(files["modules"])}
    layers = session.request("gather", files=dense)["files"] if dense else {}
    sizes = dimensions(files["config"], [layers[path] for path in dense])
    return replace(client, dimensions=sizes, normalized=normalized(recipe.engine_args))


def dense_folders(modules: str | None) -> list[str]:
    """Return the folders of the projections that sentence-transformers puts after the pooling."""
    rows = replies.decoded(modules)
    found = []
    for row in rows if isinstance(rows, list) else ():
        path = replies.text_of(replies.at(row, "path"))
        plain = path.replace("_", "").isalnum()  # a name, and no way out of the folder
        if plain and replies.text_of(replies.at(row, "type")).endswith(".Dense"):
            found.append(path)
    return found


def dimensions(config: str | None, dense: list[str | None]) -> tuple[int, ...]:
    """Return the sizes that an embedding may have; empty when the files do not say it.

    Args:
        config: text of config.json.
        dense: text of the config of each projection; the last one decides.
    """
    if dense:
        last = replies.at(replies.decoded(dense[-1]), "out_features")
        return (last,) if isinstance(last, int) else ()
    whole = replies.decoded(config)
    parts = [whole, replies.at(whole, "text_config")]
    found = [replies.at(part, key) for part in parts for key in _KEYS]
    return tuple(dict.fromkeys(n for n in found if isinstance(n, int) and not isinstance(n, bool)))


def normalized(flags: Mapping[str, Any]) -> bool:
    """Return False where --pooler-config switches the unit length off (`normalize` until vLLM 0.11,
    `use_activation` after it)."""
    for flag in ("pooler-config", "override-pooler-config"):
        given = flags.get(flag)
        config = given
        if isinstance(given, str):
            try:
                config = json.loads(given)
            except ValueError:
                continue
        for key in ("normalize", "use_activation", "activation"):
            if replies.at(config, key) is False:
                return False
    return True
