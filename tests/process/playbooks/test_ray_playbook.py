"""`ray up` as a playbook: what is prepared, what is refused, what is started."""

from __future__ import annotations

from typing import Any

import pytest
from factories import make_recipe
from piped_cluster import Make, PipedCluster
from ray_server import RayServer

from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.engine.ray import ALONE
from spark_cluster.errors import Refused
from spark_cluster.runner.events import Options

ROLES = ("network", "firewall", "containers", "caches", "images", "ray")


def ray_up(cluster: PipedCluster, ray: RayServer, **given: Any) -> Any:
    cluster.marked(*ROLES)
    recipe = make_recipe("gemma4-31b-fp8", **given)
    settings = recipe.ray.model_copy(update={"dashboard_port": ray.port})
    function = cluster.play.project.load_playbook("ray").function
    return function(cluster.play, recipe=recipe.model_copy(update={"ray": settings}), tp=2)


def test_ray_is_started_as_under_a_model_without_the_model(piped_cluster, ray):
    cluster = piped_cluster()
    for node in cluster.nodes.values():
        node.run_container(RAY, {"spark-cluster.dashboard": str(ray.port), **ALONE})
    found = ray_up(cluster, ray)
    assert (found.state, found.version, found.model) == ("running", "2.60.0", False)
    told = [(node.name, node.alive, node.gpus) for node in found.nodes]
    assert told == [("spark1", True, 1.0), ("spark2", True, 1.0)]
    assert cluster.stages == ["prepare", "fetch", "start"]
    assert tuple(cluster.roles()) == tuple(cluster.roles("spark2")) == ROLES
    started = cluster.settings("ray").server
    assert started.labels.items() >= {**ALONE, "spark-cluster.firewall": "present"}.items()
    assert started.model_path == ""


def test_in_check_mode_there_is_nothing_to_look_at(piped_cluster: Make, ray: RayServer) -> None:
    cluster = piped_cluster(options=Options(check=True))
    assert ray_up(cluster, ray) is None
    assert ray.requests == []


def test_a_server_is_not_ended_for_it(piped_cluster: Make, ray: RayServer) -> None:
    cluster = piped_cluster()
    cluster.head.run_container(SERVER, {"spark-cluster.recipe": "lab-paris"})
    with pytest.raises(Refused, match="lab-paris is up") as caught:
        ray_up(cluster, ray)
    assert caught.value.hint == "spark-cluster down, then spark-cluster ray up"
    assert (cluster.stages, cluster.containers) == ([], {"spark1": [SERVER], "spark2": []})


def test_a_recipe_without_ray(piped_cluster: Make, ray: RayServer) -> None:
    with pytest.raises(Refused, match="joins the nodes without Ray"):
        ray_up(piped_cluster(), ray, executor="mp")
