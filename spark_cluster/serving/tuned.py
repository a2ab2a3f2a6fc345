"""What was tuned for a launch: found on the nodes, and handed to the engine that starts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from spark_cluster.node import images
from spark_cluster.node.engine_caches import short
from spark_cluster.node.tuned_kernels import VARIABLE, folder_of

if TYPE_CHECKING:
    from spark_cluster.runner.play import Play
    from spark_cluster.serving.plan import ServePlan
    from spark_cluster.topology import Node

LABEL = "spark-cluster.tuned"
"""Of the engine's containers: files with tuned parameters that they were started with."""

Found = Mapping[str, Sequence[Mapping[str, Any]]]
"""Node to what is tuned there."""


def look(play: Play, plan: ServePlan, nodes: Sequence[Node]) -> Found:
    """Ask the nodes for what is tuned for a plan's model; nothing is asked where it cannot be."""
    recipe, folder = plan.recipe, plan.deployment.cache_root
    if recipe.engine != "vllm" or recipe.venv is not None or VARIABLE in recipe.env:
        return {}
    waiting = {
        node.name: play.session(node).submit("caches", what="tuned", folder=folder)
        for node in nodes
    }
    answers = {name: pending.wait()["tuned"] for name, pending in waiting.items()}
    return {
        name: [entry for entry in entries if entry["model"] == recipe.model.name]
        for name, entries in answers.items()
    }


def applied(play: Play, plan: ServePlan, found: Found) -> ServePlan:
    """Return the plan with what is tuned for its model, size, GPUs and image on all its nodes.

    Without it on each of them the plan stays as it is: all ranks get the same environment.
    """
    if not all(fitting(found.get(node.name, ()), plan.tp, {_gpu(node)}) for node in plan.nodes):
        return plan
    image = _image(play, plan)
    files_of = [
        {str(e["file"]) for e in fitting(found[node.name], plan.tp, {_gpu(node)}, image)}
        for node in plan.nodes
    ]
    files = set.intersection(*files_of)
    if not files:
        play.note(
            "kernels are tuned for this model with another image, and not used: "
            f"`spark-cluster tune {plan.recipe.name}` tunes them for this one"
        )
        return plan
    made = plan.deployment
    folder = folder_of(made.cache_root, image)
    tuned = replace(
        made,
        env={**made.env, VARIABLE: folder},
        mounts=(*made.mounts, f"{folder}:{folder}:ro"),
        labels={**made.labels, LABEL: " ".join(sorted(files))},
    )
    return replace(plan, deployment=tuned)


def fitting(
    entries: Iterable[Mapping[str, Any]], tp: int, gpus: Collection[str], image: str = ""
) -> list[Mapping[str, Any]]:
    """Return what is tuned for a size, GPUs and an image's id; for any image without one."""
    own = short(image)
    return [
        entry
        for entry in entries
        if entry["tp"] == tp and entry["gpu"] in gpus and (not image or entry["image"] == own)
    ]


def _image(play: Play, plan: ServePlan) -> str:
    """Return the id of the image on the head; `-` where it is not there yet."""
    asked = {"image": images.question(plan.deployment.image)}
    answer = play.session(plan.nodes[0]).request("gather", commands=asked)
    found = images.answered(answer["commands"]["image"])
    return found.id if found is not None else "-"


def _gpu(node: Node) -> str:
    return node.facts.gpu.name if node.facts.gpu else ""
