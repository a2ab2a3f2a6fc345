"""Serve another recipe in place of the one that runs; the old one again if the new one fails."""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Annotated, Any

from spark_cluster.config.recipe import Recipe
from spark_cluster.config.schema import Document, Flat, Rounded
from spark_cluster.engine import (
    admission,
    launches,
    ray_cluster,
    readiness,
    ready,
    vram,
)
from spark_cluster.engine.deployment import Deployment
from spark_cluster.engine.fetch import fetch
from spark_cluster.engine.hub_models import stored
from spark_cluster.engine.launches import (
    Load,
    PreviousServer,
    keep_logs,
    plan_again,
    previous_server_of,
)
from spark_cluster.engine.names import SERVER
from spark_cluster.engine.readiness import must_serve_one
from spark_cluster.engine.resolve import resolve
from spark_cluster.engine.result import Served
from spark_cluster.errors import SparkClusterError, Unreachable
from spark_cluster.node.containers import ContainerState
from spark_cluster.runner.play import Play


@dataclass(frozen=True)
class Swapped(Document):
    """A verified endpoint in place of another one.

    Attributes:
        former: what served before; None where nothing did, or the same.
        released: the memory of each node when the old one had ended.
        down_s: seconds without a server: from the beginning of its stop to the verified answer.
    """

    served: Flat[Served]
    former: PreviousServer | None = None
    released: list[vram.NodeVram] = field(default_factory=list)
    down_s: Annotated[float, Rounded(3)] = 0.0


def main(
    play: Play,
    *,
    recipe: Recipe,
    tp: int,
    load: Load,
    restore: bool = True,
    unload: Collection[str] = (),
    end_jobs: bool = False,
) -> Swapped | None:
    """Stop what serves, wait for its memory, and serve `recipe`; None where nothing is verified.

    What can be refused or fetched is, before anything is stopped.

    Args:
        load: returns the recipe of what serves now, to be started again.
        restore: start the old one again when the new one fails.
        unload: programs whose loaded models are unloaded, too.
        end_jobs: end Ray although jobs are running on it.
    """
    must_serve_one(play, "swap replaces")
    deployment = resolve(recipe, play.inventory, play.nodes, tp)
    running = readiness.container_state(play, SERVER)
    previous = previous_server_of(running) if running.status == "running" else None
    if previous is None or admission.serves(running, deployment.first):
        same = previous is not None
        play.note(f"{recipe.name} serves already" if same else "no server to stop")
        served = _up(play, deployment, end_jobs=end_jobs)
        return Swapped(served) if served is not None else None
    if not end_jobs:
        ray_cluster.must_have_no_jobs(play, ray_cluster.running_jobs(play), end_jobs=False)
    old = plan_again(play, previous, load, running) if restore else None
    back = f"to go back: {previous.command}"
    play.note(f"replacing {previous} with {recipe.name} (tp {tp}); {back}")
    play.after_interrupt = f"run the same command again to continue; {back}"
    _before_the_stop(play, deployment, running)
    began = time.monotonic()
    try:
        stopped = _down(play, unload, end_jobs=end_jobs)
        served = _up(play, deployment)
    except SparkClusterError as error:
        if old is None:
            raise
        raise _restored(play, old, previous, error) from error
    if served is None:
        return None
    down_s = time.monotonic() - began - play.seconds.get(ready.STAGE, 0.0)
    return Swapped(served, previous, stopped.now if stopped else [], down_s)


def _before_the_stop(play: Play, deployment: Deployment, running: ContainerState) -> None:
    """Refuse what cannot work, and fetch image and model while the old server still answers."""
    server = deployment.first
    models = stored(play, server.recipe, server.nodes)
    downloaded = models.gib_present(server.recipe.model.name)
    admission.must_work(play, server, running, downloaded)
    if play.check:  # `up` shows what would be fetched; what it says of warmth, it says at a start
        warmth = launches.of_recipe(play, server.recipe, server.tp)
        if warmth is not None:
            play.note(f"compile cache: {warmth.told}")
        return
    with play.stage("prepare"):
        docker = ("containers",) if server.recipe.runtime == "docker" else ()
        play.apply(server.nodes, *docker, "caches")
    with play.stage("fetch"):
        fetch(play, deployment, {server.recipe.name: models})


def _up(play: Play, deployment: Deployment, *, end_jobs: bool = False) -> Served | None:
    served: Served | None = play.project.load_playbook("up").function(
        play, deployment=deployment, end_jobs=end_jobs
    )
    return served


def _down(play: Play, unload: Collection[str] = (), *, end_jobs: bool) -> Any:
    """Stop what serves, and wait for its memory; that of other programs may stay."""
    down = play.project.load_playbook("down").function
    return down(play, unload=unload, keep_others=True, end_jobs=end_jobs)


def _restored(
    play: Play, old: Deployment, previous: PreviousServer, error: SparkClusterError
) -> SparkClusterError:
    """Start the old server again; return the error that says how both ended."""
    kind = type(error)
    if isinstance(error, Unreachable):
        return kind(
            f"{error.message}; {previous} was stopped and cannot be started again while the "
            "node is away",
            where=error.where,
            hint=f"then: {previous.command}",
        )
    play.note(f"the swap failed: {error.message}. {previous} is started again", warning=True)
    play.readmit()
    play.options.force = True  # the old server has been serving
    log = keep_logs(play)
    hint = f"the log of the failed server: {log}" if log is not None else error.hint
    try:
        with play.stage("restore"):
            _down(play, end_jobs=True)  # of the Ray that was started for the failed server
            _up(play, old)
    except SparkClusterError as again:
        return kind(
            f"{error.message}; {previous} could not be started again either: {again.message}. "
            "Nothing serves",
            where=error.where,
            hint=f"{hint}\n  {again.hint}\n  then: {previous.command}",
        )
    return kind(
        f"{error.message}; {previous} was started again, is verified, and serves",
        where=error.where,
        hint=hint,
    )
