"""Start a Ray cluster without a model, for training, data and evaluation jobs on all GPUs."""

from __future__ import annotations

from spark_cluster.config.recipe import Recipe
from spark_cluster.engine import ray_cluster
from spark_cluster.engine.ray import ALONE
from spark_cluster.engine.resolve import resolve
from spark_cluster.engine.start import start_ray_alone
from spark_cluster.runner.play import Play


def main(
    play: Play, *, recipe: Recipe, tp: int, end_jobs: bool = False
) -> ray_cluster.RayStatus | None:
    """Start Ray on `tp` nodes with the image of a recipe; return it, or None in check mode.

    A Ray that is up stays as it is; with `end_jobs` it is restarted for new settings even if jobs
    are running on it.
    """
    deployment = resolve(recipe, play.inventory, play.nodes, tp)
    ray_cluster.must_suit(recipe, len(deployment.nodes), "ray up")
    ray_cluster.must_serve_nothing(play, deployment.nodes, "ray up")
    server = ray_cluster.prepare_ray(play, deployment)
    with play.stage("start"):
        jobs = ray_cluster.running_jobs(play)
        ray_cluster.must_keep_its_jobs(play, jobs, server, ALONE, end_jobs=end_jobs)
        start_ray_alone(play, server, ALONE)
    return None if play.check or play.options.selection.partial else ray_cluster.look(play)
