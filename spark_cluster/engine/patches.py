"""A recipe's patches on the nodes: sent there, and looked for in the image before it starts."""

from __future__ import annotations

from collections.abc import Sequence

from spark_cluster.config.recipe_settings import MountedPatch
from spark_cluster.errors import Failed, Refused
from spark_cluster.node import confinement
from spark_cluster.resources import Directory, File, LaptopFile, Resource
from spark_cluster.runner.play import Play
from spark_cluster.topology import Node


def uploads(patches: Sequence[MountedPatch]) -> list[Resource]:
    """Return the laptop's files as they lie on the nodes."""
    sent = {patch.source: patch.upload for patch in patches if patch.upload is not None}
    folders = sorted({path.rpartition("/")[0] for path in sent})
    return [
        *(Directory(folder, mode=0o700) for folder in folders),  # containers see the file itself
        *(File(path, content=LaptopFile(file)) for path, file in sent.items()),
    ]


def require_patches(
    play: Play, nodes: Sequence[Node], image: str, patches: Sequence[MountedPatch]
) -> None:
    """Look for the files of the model on every node, and for what they replace in the image.

    Docker would make a folder of a missing source, and mount over a missing target without a word:
    the patch would be in no one's way.

    Raises:
        Refused: one of them is missing; nothing was started.
    """
    for patch in patches:
        for node in nodes:
            if play.session(node).run(["test", "-f", patch.source]).status != 0:
                raise Refused(
                    f"the patch {patch.source} is not there, although the model is",
                    where=node.name,
                    hint=f"the recipe says that it comes with the model, to repair: {patch.why}",
                )
    targets = [patch.target for patch in patches]
    missing = _not_in_image(play, nodes[0], image, targets) if targets else []
    if missing:
        raise Refused(
            f"{image} has no {missing[0]}, which a patch is to replace",
            where=nodes[0].name,
            hint="the patch is for another version of the image; look for the file's path in it",
        )


def _not_in_image(play: Play, node: Node, image: str, paths: list[str]) -> list[str]:
    """Return those of the paths that are no files in the image."""
    look = 'for path; do test -f "$path" || echo "$path"; done'
    run = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "sh"]
    run += [*confinement.options(confinement.READ_OTHERS), image]
    done = play.session(node).run([*run, "-c", look, "sh", *paths], timeout=120)
    if done.status != 0:
        raise Failed(f"looking into {image}: {done.stderr.strip()}", where=node.name)
    return done.stdout.split()
