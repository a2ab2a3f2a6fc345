"""Caches of an engine's programs on a node: a folder for each image, which only its programs write.

Compiled code of one image is not read by another one, so what a hostile image leaves there reaches
no other. Programs see the folder of their image in the place of the whole: paths, which are parts
of compilers' keys, are the same for all images.
"""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from spark_cluster.node.beneath import Folder

if TYPE_CHECKING:
    from spark_cluster.node.host import Host

IMAGES = "images"
"""Below the folder of the caches: a folder for each image, by its id."""

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

    Raises:
        NotFollowed: a link, or another user's folder, is in the place of one of the folders.
    """
    Folder(host.path(root), owners=frozenset({0, os.geteuid()})).make(f"{IMAGES}/{name}")
