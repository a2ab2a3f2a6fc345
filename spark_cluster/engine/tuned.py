"""What was tuned for a launch: found on the nodes, and handed to the engine that starts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from spark_cluster.engine.deployment import Deployment, Server
from spark_cluster.node import images
from spark_cluster.node.engine_caches import short
from spark_cluster.node.tuned_kernels import VARIABLE, folder_of
from spark_cluster.runner.play import Play
from spark_cluster.topology import Node

LABEL = "spark-cluster.tuned"
"""Of the engine's containers: files with tuned parameters that they were started with."""

Found = Mapping[str, Sequence[Mapping[str, Any]]]
"""Node to what is tuned there."""


def look(play: Play, server: Server, nodes: Sequence[Node]) -> Found:
    """Ask the nodes for what is tuned for a server's model; nothing is asked where it cannot be."""
    recipe, folder = server.recipe, server.cache_root
    if recipe.engine != "vllm" or recipe.venv is not None or VARIABLE in recipe.env:
        return {}
    waiting = {
        node.name: play.session(node).submit("caches", what="state", folder=folder)
        for node in nodes
    }
    answers = {name: pending.wait()["tuned"] for name, pending in waiting.items()}
    return {
        name: [entry for entry in entries if entry["model"] == recipe.model.name]
        for name, entries in answers.items()
    }


def of_all(play: Play, deployment: Deployment, found: Mapping[str, Found]) -> Deployment:
    """Return a deployment whose servers get what is tuned for them.

    Args:
        found: recipe to what is tuned for it.
    """
    made = [applied(play, server, found[server.recipe.name]) for server in deployment.servers]
    return deployment.with_servers(made)


def applied(play: Play, server: Server, found: Found) -> Server:
    """Return the server with what is tuned for its model, size and image on all its nodes.

    Without it on each of them the server stays as it is: all ranks get the same environment.
    """
    if not all(fitting(found.get(node.name, ()), server.tp) for node in server.nodes):
        return server
    image = image_on_head(play, server)
    there = [fitting(found[node.name], server.tp, image) for node in server.nodes]
    files = set.intersection(*({str(entry["file"]) for entry in entries} for entries in there))
    if not files:
        play.note(
            "kernels are tuned for this model with another image, and not used: "
            f"`spark-cluster tune {server.recipe.name}` tunes them for this one"
        )
        return server
    folder = folder_of(server.cache_root, image, server.recipe.model.name, server.tp)
    return replace(
        server,
        env={**server.env, VARIABLE: folder},
        mounts=(*server.mounts, f"{folder}:{folder}:ro"),
        labels={**server.labels, LABEL: " ".join(sorted(files))},
    )


def fitting(
    entries: Iterable[Mapping[str, Any]], tp: int, image: str = ""
) -> list[Mapping[str, Any]]:
    """Return what is tuned for a size and an image's id; for any image without one."""
    wanted = {"tp": tp, **({"image": short(image)} if image else {})}
    return [entry for entry in entries if wanted.items() <= entry.items()]


def image_on_head(play: Play, server: Server) -> str:
    """Return the id of the image on the head; `-` where it is not there yet."""
    asked = {"image": images.question(server.image)}
    answer = play.session(server.nodes[0]).request("gather", commands=asked)
    found = images.answered(answer["commands"]["image"])
    return found.id if found is not None else "-"
