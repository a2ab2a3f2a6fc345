"""The last rungs of readiness: what a real client does, asked by the head, judged here.

Fluent nonsense, a tool call that stays text, thoughts in the wrong field: `/health` is fine with
all of them, and each has been seen on a Spark.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from spark_cluster.engine import embedding_size, readiness
from spark_cluster.engine.checks import every
from spark_cluster.engine.client import Client
from spark_cluster.engine.names import SERVER
from spark_cluster.errors import VerificationFailed
from spark_cluster.runner.events import Progress

if TYPE_CHECKING:
    from spark_cluster.config.launch import Launch
    from spark_cluster.config.recipe import Recipe
    from spark_cluster.engine.deployment import Server
    from spark_cluster.engine.endpoint import Endpoint
    from spark_cluster.runner.play import Play


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
        for check in every.of_rung(rung):
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
        return embedding_size.expecting(client, session, recipe)
    return client


def with_known(error: VerificationFailed, rung: str, launch: Launch) -> VerificationFailed:
    """Return the error with the known issues of the launch that this rung shows in its hint."""
    from spark_cluster.known_issues import live_issues

    known = live_issues.live(rungs={rung: error.message}, launch=launch)
    lines = [f"known: {f.title} ({f.id}): {f.fix}" for f in known]
    error.hint = "\n  ".join([error.hint, *lines] if error.hint else lines)
    return error
