"""Tune the engine's kernels for a recipe on the head's GPU, and hand the result to the others."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spark_cluster.config.recipe import Recipe
from spark_cluster.engine import tuning
from spark_cluster.engine.fetch import fetch
from spark_cluster.engine.hub_models import stored
from spark_cluster.engine.resolve import resolve
from spark_cluster.engine.tuning import Tuning
from spark_cluster.runner.play import Play


def main(
    play: Play,
    *,
    recipe: Recipe,
    tp: int,
    sizes: Sequence[int],
    limit_s: float,
    tuner: Path | None = None,
    renew: bool = False,
) -> Tuning | None:
    """Tune `recipe` as `tp` nodes would serve it; None in check mode.

    With `tuner`, a file of the laptop in place of the image's own; with `renew` also what is tuned.
    """
    deployment = resolve(recipe, play.inventory, play.nodes, tp)
    server = deployment.first
    tuning.must_be_tunable(server)
    tuning.must_be_free(play, server)
    models = stored(play, recipe, server.nodes)
    with play.stage("prepare"):
        play.apply(server.nodes, "containers", "caches")
        play.refresh(server.nodes)
    with play.stage("fetch"):
        server = fetch(play, deployment, {recipe.name: models}).first
    arguments = tuning.arguments(play, server)
    low, high = (len(sizes) * seconds for seconds in tuning.SIZE_S)
    play.note(
        f"{len(sizes)} batch sizes: {low / 3600:.1f} to {high / 3600:.0f} h, {limit_s / 3600:g} h "
        "at most; it goes on when this ends, and the same command waits for it"
    )
    with play.stage("tune"):
        path = tuning.sent_tuner(play, server, tuner)
        wanted = tuning.resource(server, arguments, sizes, tuner=path, limit_s=limit_s, renew=renew)
        made = play.apply(server.nodes[0], [wanted])
    if play.check:
        return None
    file, tuned = tuning.hand_on(play, server)
    gpu = play.head.facts.gpu
    return Tuning(
        recipe=recipe.name,
        tp=tp,
        image=server.image,
        gpu=gpu.name if gpu else "",
        file=file,
        sizes=tuned,
        changed=made.changed,
        nodes=tuple(node.name for node in server.nodes),
        estimate_s=(low, high),
    )
