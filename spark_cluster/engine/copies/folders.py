"""Plain folders: from one node to the others, and from the laptop to one node and on from there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_cluster.config.topology import Node
from spark_cluster.engine.copies.copy import LIMIT_S, Copied, copy
from spark_cluster.errors import Refused, UsageError
from spark_cluster.node.store.manifest import MOST_FILES, Manifest
from spark_cluster.resources import Directory, File, LaptopFile, Resource
from spark_cluster.runner.play import Play

ROLE = "models"
"""Its name stands for all models in `--tags` and `--skip-tags`."""

SENT_TO_EACH = 512 * 1024 * 1024
"""Bytes of a folder of the laptop up to which each node gets it from there; larger ones are sent to
one node, and copied to the others over the fabric."""


def is_large(local: Path) -> bool:
    """Return whether a folder of the laptop is sent once only."""
    return sum(p.stat().st_size for p in local.rglob("*") if p.is_file()) > SENT_TO_EACH


def is_sent_once(given: Mapping[str, Any]) -> bool:
    """Return whether the folder of a model on the laptop is sent to one node only.

    Args:
        given: settings of the role `models`.
    """
    folder = given.get("directory")
    return given["source"] == "directory" and folder is not None and is_large(folder)


@dataclass(frozen=True)
class LaptopFolder:
    """A folder of the laptop that is sent to one node, and copied to the others from there.

    Attributes:
        nodes: the one that it is sent to first.
        given: settings of the role `models`.
    """

    play: Play
    nodes: Sequence[Node]
    given: Mapping[str, Any]

    def bring(self) -> None:
        """Have it on all nodes.

        A file that has arrived is not sent again; one that was cut is begun again.
        """
        play, path = self.play, self.given["path"]
        if not play.options.selection.wants_part([node.name for node in self.nodes], ROLE):
            return
        first, *others = self.nodes
        play.apply([first], uploads(self.given["directory"], path))
        if play.check or not others:
            return
        for one in copy_folder(play, path, first, others):
            if one.sender:
                play.note(f"{self.given['name']} on {one}")


def copy_folder(
    play: Play,
    path: str,
    source: Node,
    targets: Sequence[Node],
    *,
    exact: bool = False,
    encrypt: bool = True,
    streams: int = 0,
) -> list[Copied]:
    """Have a folder's files on the targets, at the same path; files of other names stay there.

    The source's files are hashed, those that have not changed since the last time are not read.

    Args:
        path: absolute, on the nodes.
        exact: hidden files, too, and the time of each file's last change.
        encrypt, streams: see `copy`.

    Raises:
        UsageError: the path is not absolute, or the source is a target.
        SparkClusterError: a node cannot send or receive, with the reason and the fix.
    """
    if not path.startswith("/"):
        raise UsageError(f"{path} is not an absolute path", hint="name the folder on the nodes")

    reply = play.session(source).request(
        "copy",
        play.progress_of(source, f"read {path}"),
        what="folder",
        folder=path,
        exact=exact,
        timeout=LIMIT_S,
    )
    manifest = Manifest.from_document(reply["manifest"])
    # One node after the other: in a chain a node would send on what it still has of an old file,
    # whose name is the same.
    return [
        one
        for target in targets
        for one in copy(
            play,
            manifest,
            source,
            [target],
            folder=path,
            encrypt=encrypt,
            streams=streams,
        )
    ]


def uploads(local: Path, path: str) -> list[Resource]:
    """The files of a folder of the laptop, and their folders, as resources of a node.

    Hidden files are left out. Which files a recipe may send is checked when it is read.

    Raises:
        Refused: it has no file, or too many.
    """
    found = (path.relative_to(local) for path in local.rglob("*") if path.is_file())
    files = sorted(path for path in found if not any(one.startswith(".") for one in path.parts))
    if not 0 < len(files) <= MOST_FILES:
        raise Refused(
            f"{local} has {len(files)} files; expected 1 to {MOST_FILES}",
            hint="name the folder that the model's files are in; names with a leading dot are "
            "left out",
        )
    parents = sorted({parent for file in files for parent in file.parents})
    folders = [f"{path}/{parent}" if parent.name else path for parent in parents]
    made: list[Resource] = [Directory(folder, mode=0o755) for folder in folders]
    return made + [File(f"{path}/{file}", content=LaptopFile(local / file)) for file in files]
