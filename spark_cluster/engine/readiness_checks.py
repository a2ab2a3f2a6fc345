"""The last rungs of readiness: what a real client does, asked by the head, judged here.

Fluent nonsense, a tool call that stays text, thoughts in the wrong field: `/health` is fine with
all of them, and each has been seen on a Spark.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from spark_cluster.config.launch import Launch
from spark_cluster.config.model_kind import RUNGS, ModelKind, Rung
from spark_cluster.config.recipe import Recipe
from spark_cluster.engine import readiness
from spark_cluster.engine.checks import context, kinds, logprobs, structured, texts, tools
from spark_cluster.engine.client import Check, Client
from spark_cluster.engine.deployment import Server
from spark_cluster.engine.endpoint import Endpoint
from spark_cluster.engine.names import SERVER
from spark_cluster.errors import VerificationFailed
from spark_cluster.known_issues import rules
from spark_cluster.node import replies
from spark_cluster.runner.events import Progress
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Session


def climb(play: Play, server: Server) -> str:
    """Climb each rung that the recipe names, in its order.

    Returns:
        The answer to the recipe's own question; of another kind than chat, what its rung found.

    Raises:
        VerificationFailed: at the first rung that does not hold.
    """
    answer = ""
    client = client_for(play, server.endpoint, server.recipe, server.program)
    flags = {flag: str(value) for flag, value in server.launch.args.items()}
    client = replace(client, flags=flags)
    for rung in server.recipe.readiness.rungs:
        for check in of_rung(rung):
            play.bus.emit(Progress(play.head.name, "verify", check.title))
            try:
                found = check.run(client)
            except VerificationFailed as error:
                raise with_known(error, rung, server.launch) from None
            if rung == "answer" or server.recipe.kind != "chat":
                answer = found
    return answer


def client_for(play: Play, endpoint: Endpoint, recipe: Recipe, server: str = SERVER) -> Client:
    """Return the client that asks from the head, with what the recipe lets one expect.

    Args:
        server: name of the program that serves, for its log.
    """
    session = play.session(play.head)
    own_question = partial(readiness.ask, play, endpoint, recipe.probe, server)
    client = Client(session, endpoint, play.head.name, own_question=own_question)
    if recipe.kind == "embedding":
        return expecting(client, session, recipe)
    return client


def with_known(error: VerificationFailed, rung: str, launch: Launch) -> VerificationFailed:
    """Return the error with the known issues of the launch that this rung shows in its hint."""

    known = rules.live(rungs={rung: error.message}, launch=launch)
    lines = [f"known: {f.title} ({f.id}): {f.fix}" for f in known]
    error.hint = "\n  ".join([error.hint, *lines] if error.hint else lines)
    return error


# -- the size of embeddings, by the model's configuration ----------------------------------------


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


# -- all checks ----------------------------------------------------------------------------------


_HOMES = (texts, logprobs, tools, structured, context, kinds)
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
