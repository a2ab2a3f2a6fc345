"""Measure the link and the memory of the nodes as a Ray job, on a Ray that is there for it."""

from __future__ import annotations

import contextlib

from spark_cluster.bench import fabric_run
from spark_cluster.bench.fabric_run import FabricRecord
from spark_cluster.config.recipe import Recipe
from spark_cluster.engine import readiness
from spark_cluster.engine.deployment import Deployment
from spark_cluster.engine.names import RAY
from spark_cluster.engine.ray import MEASURING, dashboard_port
from spark_cluster.engine.ray_cluster import prepare_ray
from spark_cluster.engine.resolve import resolve
from spark_cluster.engine.start import start_ray_alone
from spark_cluster.errors import SparkClusterError
from spark_cluster.runner.play import Play

FOUND_WITHIN_S = 20.0
"""Seconds in which a Ray that runs already must show its nodes."""


def main(play: Play, *, recipe: Recipe, tp: int, name: str) -> FabricRecord | None:
    """Measure between `tp` nodes, with the image of a recipe; None in check mode.

    A Ray that runs without a server is used and stays; otherwise one is started, and ended with
    its firewall afterwards. One that an earlier `bench fabric` left is replaced.
    """
    deployment = resolve(recipe, play.inventory, play.nodes, tp)
    fabric_run.must_be_possible(play, deployment.first)
    if not play.check:
        fabric_run.warn_of_others(play)
    running = readiness.container_state(play, RAY)
    if running.running and MEASURING not in running.labels and not play.check:
        port = dashboard_port(running)
        with play.stage("start"):
            readiness.ray_cluster(play, len(deployment.nodes), port, FOUND_WITHIN_S)
        with play.stage("measure"):
            return fabric_run.measure(play, deployment.first, port, name)
    try:
        _start(play, deployment, name)
        if play.check:
            play.note("check mode: nothing was started, so nothing was measured")
            return None
        with play.stage("measure"):
            found = fabric_run.measure(play, deployment.first, recipe.ray.dashboard_port, name)
    except BaseException:
        with contextlib.suppress(SparkClusterError):  # the first error says more
            _end(play, deployment)
        raise
    _end(play, deployment)
    return found


def _start(play: Play, deployment: Deployment, name: str) -> None:
    """Start Ray for the measurement; its nodes end it by themselves after a limit."""
    server, nodes = prepare_ray(play, deployment), deployment.nodes
    with play.stage("start"):
        if not play.check:
            seconds = fabric_run.end_limit_s(deployment.first.recipe.ray.join_timeout_s)
            fabric_run.arm(map(play.session, nodes), name, seconds)
        start_ray_alone(play, server, {MEASURING: name})
        if not play.check:
            fabric_run.start_no_more(map(play.session, nodes))


def _end(play: Play, deployment: Deployment) -> None:
    if not play.check:
        play.project.load_playbook("down").function(play)
        fabric_run.disarm(map(play.session, deployment.nodes))
