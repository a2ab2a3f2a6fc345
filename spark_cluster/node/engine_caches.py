"""Caches of an engine's programs on a node: a folder for each image, which only its programs write.

Compiled code of one image is not read by another one, so what a hostile image leaves there reaches
no other. Programs see the folder of their image in the place of the whole: paths, which are parts
of compilers' keys, are the same for all images.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from typing import TYPE_CHECKING

from spark_cluster.node import launch_records
from spark_cluster.node.beneath import Folder

if TYPE_CHECKING:
    from spark_cluster.node.host import Host

IMAGES = "images"
"""Below the folder of the caches: a folder for each image, by its id."""

SHARED = ("vllm", "torchinductor", "triton", "flashinfer")
"""Folders below that of the caches which all images wrote before they had folders of their own."""


VENV = "venv-"
"""Begin of the names of folders of virtual environments' programs."""


def short(image: str) -> str:
    """Return the name of an image's folder: the first digits of its id (`sha256:...`)."""
    return image.removeprefix("sha256:")[:12]


def of_environment(path: str) -> str:
    """Return the name of the folder of a virtual environment's programs."""
    return f"{VENV}{hashlib.sha256(path.encode()).hexdigest()[:12]}"


def folder_of(root: str, name: str) -> str:
    """Return the folder of an image's caches.

    Args:
        root: folder of the caches.
        name: as `short` or `of_environment` gives it.
    """
    return f"{root}/{IMAGES}/{name}"


def prepare(host: Host, root: str, name: str) -> None:
    """Make the folder of an image's caches.

    The first image on a node takes over what was shared before, if the records of launches there
    name it and no other one. Otherwise its first start is a cold one.

    Raises:
        NotFollowed: a link, or another user's folder, is in the place of one of the folders.
    """
    folder = Folder(host.path(root), owners=frozenset({0, os.geteuid()}))
    first = not _is_there(folder, IMAGES)
    folder.make(f"{IMAGES}/{name}")
    if not first:
        return
    there = [one for one in SHARED if _is_there(folder, one)]
    if not there:
        return
    writers = {short(record.image) for record in launch_records.read(host.root)}
    if writers == {name}:
        for one in there:
            folder.rename(one, f"{IMAGES}/{name}/{one}")
        host.note(f"the compiled code below {root} is this image's own from now on")
    else:
        host.note(
            f"{', '.join(there)} below {root} may have been written by other images and are not "
            "used any more: the first start of each image compiles again, and "
            "`spark-cluster caches prune` removes them"
        )


def _is_there(folder: Folder, name: str) -> bool:
    with contextlib.suppress(FileNotFoundError):
        folder.stat(name)
        return True
    return False
