"""A recipe's patches: files mounted over the image's own, in every container of the engine."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from spark_cluster.engine.play import Play
from spark_cluster.errors import Failed, Refused

if TYPE_CHECKING:
    from spark_cluster.cluster import Spark
    from spark_cluster.recipe import Recipe
    from spark_cluster.userfiles.recipe_file import Patch

FOLDER = "/var/lib/spark-cluster/patches"
"""Where the laptop's files lie on the nodes."""


def uploads(recipe: Recipe) -> dict[str, Path]:
    """Path on the nodes to the laptop's file.

    Raises:
        Refused: a file is not on the laptop.
    """
    return {_source(recipe, p): Path(p.file) for p in recipe.patches if p.origin == "laptop"}


def mounts(recipe: Recipe) -> tuple[str, ...]:
    """As containers take them, `SOURCE:TARGET:ro`.

    Raises:
        Refused: a file is not on the laptop.
    """
    return tuple(f"{_source(recipe, patch)}:{patch.target}:ro" for patch in recipe.patches)


def must_be_there(play: Play, nodes: Sequence[Spark], recipe: Recipe) -> None:
    """Look for the files of the model on every node, and for what they replace in the image.

    Docker would make a folder of a missing source, and mount over a missing target without a word:
    the patch would be in no one's way.

    Raises:
        Refused: one of them is missing; nothing was started.
    """
    for patch in recipe.patches:
        source = _source(recipe, patch)
        for node in nodes:
            if play.session(node).run(["test", "-f", source]).status != 0:
                raise Refused(
                    f"the patch {source} is not there, although {recipe.model.name} is",
                    where=node.name,
                    hint=f"the recipe says that it comes with the model, to mend this: {patch.why}",
                )
    targets = [patch.target for patch in recipe.patches]
    missing = _not_in_image(play, nodes[0], recipe.image.reference, targets) if targets else []
    if missing:
        raise Refused(
            f"{recipe.image.ref} has no {missing[0]}, which a patch is to replace",
            where=nodes[0].name,
            hint="the patch is for another version of the image; look for the file's path in it",
        )


def _not_in_image(play: Play, node: Spark, image: str, paths: list[str]) -> list[str]:
    """Those of the paths that are no files in the image."""
    look = 'for path; do test -f "$path" || echo "$path"; done'
    run = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "sh", image]
    done = play.session(node).run([*run, "-c", look, "sh", *paths], timeout=120)
    if done.status != 0:
        raise Failed(f"looking into {image}: {done.stderr.strip()}", where=node.name)
    return done.stdout.split()


def _source(recipe: Recipe, patch: Patch) -> str:
    """Its path on the nodes; a laptop's file has its hash in it, so that a new one is mounted."""
    if patch.origin == "model":
        return f"{recipe.model.node_path}/{patch.file}"
    file = Path(patch.file)
    if not file.is_file():
        raise Refused(
            f"the patch {file} of recipe {recipe.name} is not on this machine",
            hint="`file` of a patch is relative to the recipe",
        )
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    return f"{FOLDER}/{digest[:12]}/{file.name}"
