"""Before anything is fetched or started: what the user is told, and what the nodes need."""

from __future__ import annotations

from spark_cluster.engine.deployment import Deployment
from spark_cluster.engine.link_cabling import must_be_switched
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.engine.runtime import absent
from spark_cluster.engine.start import guard
from spark_cluster.runner.play import Play


def announce(play: Play, deployment: Deployment) -> None:
    """Say at each run what the user may not want: an open endpoint, what a recipe gets of this
    machine, and what it changes in its image."""
    serve = play.inventory.serve
    if serve.open and not serve.on_loopback:
        play.note(
            f"serve.open: anyone who reaches {deployment.endpoint.host} may use the endpoint; "
            "`api_key: {env: NAME}` instead requires a key",
            warning=True,
        )
    for server in deployment.recipes:
        recipe, build = server.recipe, server.recipe.image.build
        if recipe.secret_env:
            names = ", ".join(ref.env for ref in recipe.secret_env.values())
            play.note(f"the recipe gives the containers {names} from this machine's environment")
        if build is not None and build.steps:
            steps = ", ".join(step.shown for step in build.steps)
            play.note(f"scripts of the recipe change the image, as root in its build: {steps}")


def prepare(play: Play, deployment: Deployment) -> str:
    """Link, firewall, Docker, caches, start limit where it serves; nothing of ours elsewhere.

    Returns:
        Whether there is a firewall: `present` or `absent`.
    """
    nodes = deployment.nodes
    link = ("network",) if len(nodes) > 1 else ()
    must_be_switched(nodes, play.session)
    guarded = guard(play, deployment)
    front = ("haproxy",) if deployment.endpoint.engine_port is not None else ()
    docker = ("containers",) if deployment.first.runtime == "docker" else ()
    made = play.apply(nodes, *link, guarded, *docker, "caches", *front, "start_limit")
    if made.changed and not play.check:
        play.refresh(nodes)  # Docker's version, the fabric's addresses
    if deployment.idle:
        play.apply(
            deployment.idle,
            absent(SERVER, RAY),
            play.role("endpoint"),
            play.role("firewall", state="absent"),
            play.role("start_limit", state="absent"),
        )
    return str(guarded.given["state"])
