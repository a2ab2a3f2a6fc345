"""The model's files, on every node that serves: from the hub, or from a folder of the laptop."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from spark_cluster.config.schema import Schema
from spark_cluster.config.topology import Node
from spark_cluster.engine.node_copies import SENT_TO_EACH, is_large, uploads
from spark_cluster.errors import Refused
from spark_cluster.node import confinement, paths
from spark_cluster.resources import Command, Directory, Resource, Secret
from spark_cluster.resources.image import without_tag

DOWNLOADS = paths.DOWNLOADS
"""Folder on the node, a tmpfs, for the hub token while a download lasts."""

SCRIPT = Path(__file__).parent / "templates" / "download.sh"


class Settings(Schema):
    """Settings of the role `models`; `up` gives the first five from the recipe."""

    name: str
    """repository on the hub"""
    revision: str = "main"
    """branch, tag or commit"""
    source: Literal["hub", "directory"] = "hub"
    """source of the model"""
    path: str
    """folder on the node"""
    below: str = ""
    """folder from which on no link may lead to it: what downloads a model is root, and may have
    left one in that model's own folder"""
    directory: Path | None = None
    """folder on the laptop"""
    image: str = ""
    """image whose `hf` command downloads"""
    venv: str = ""
    """virtual environment whose `hf` does it instead"""
    mounts: tuple[str, ...] = ()
    """mounts that `hf` needs, SOURCE:TARGET; they are read-only"""
    endpoint: str = ""
    """address of a mirror of the hub; it gets the hub token, too"""
    token_env: str = "HF_TOKEN"  # noqa: S105  (the name of a variable)
    """variable of the laptop with a hub token, when it is set"""
    allowed_env: tuple[str, ...] | None = None
    """variables of the laptop that the user lets a recipe have, whose image gets the token; null
    where no recipe names the image"""
    download_timeout_s: float = 6 * 3600.0
    """seconds"""


def role(node: Node, settings: Settings) -> Iterator[Resource]:  # noqa: ARG001
    """The folder with the model in it."""
    if settings.source == "directory":
        yield from uploads(_small_folder(settings.directory), settings.path, settings.below)
        return
    yield Directory(settings.path, mode=0o755, below=settings.below)
    yield _download(settings)


def _small_folder(folder: Path | None) -> Path:
    """Return the folder on the laptop. Raises Refused: it is not there, or too large for this."""
    if folder is None or not folder.is_dir():
        raise Refused(
            f"the model's folder {folder} is not on this machine",
            hint="`directory` in the recipe; in the lab: spark-cluster lab up makes it",
        )
    if is_large(folder):
        raise Refused(
            f"{folder} holds more than {SENT_TO_EACH // 2**20} MiB",
            hint="`up` sends a larger folder to one node and copies it on; `source: hub` needs "
            "none",
        )
    return folder


def _download(settings: Settings) -> Resource:
    """`hf download` of the engine's image or virtual environment, in a unit of its own.

    The unit outlives the connection. The token goes to standard input, and from there into a file
    that only root reads.
    """
    known, allowed = settings.token_env, settings.allowed_env
    token = os.environ.get(known, "") if allowed is None or known in allowed else ""
    program, options, env = settings.image, _container_options(settings), {}
    if settings.venv:
        program, options = f"{settings.venv}/bin/hf", []
        env = {"HF_ENDPOINT": settings.endpoint} if settings.endpoint else {}
    maker, whole = without_tag(program.partition("@")[0]), f"{settings.name}@{settings.revision}"
    repository = (settings.name, settings.revision, settings.path, maker)
    return Command(
        f"download {settings.name}",
        (
            *("sh", "-c", SCRIPT.read_text(encoding="utf-8"), "download"),
            *(DOWNLOADS, container_name(settings.path), program, *repository, *options),
        ),
        # A FIFO of that name, which the image may have left, is not waited for.
        # Notes of earlier versions do not say what has downloaded.
        unless=(
            *("grep", "-D", "skip", "-qxFe", f"{whole} by {maker}", "-e", whole),
            f"{settings.path}/.complete",
        ),
        env=env,
        stdin=Secret(token) if token else "",
        timeout_s=settings.download_timeout_s,
        long=True,
    )


def _container_options(settings: Settings) -> list[str]:
    """Return what `docker run` needs for the mirror and for the mounts of the image's `hf`."""
    options = [*confinement.options(confinement.READ_OTHERS)]
    options += [f"--env=HF_ENDPOINT={settings.endpoint}"] if settings.endpoint else []
    for mount in settings.mounts:
        source, target = mount.split(":")[:2]
        options.append(f"--mount=type=bind,source={source},target={target},readonly")
    return options


def container_name(path: str) -> str:
    """Name of the container that downloads into a folder of the node; there is one at a time."""
    return f"spark-download-{hashlib.sha256(path.encode()).hexdigest()[:12]}"
