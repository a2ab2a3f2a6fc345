"""The container image, on every node that serves."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from pydantic import Field

from spark_cluster.config.image_build import bases
from spark_cluster.config.schema import Schema
from spark_cluster.config.topology import Node
from spark_cluster.node import paths
from spark_cluster.node.values import LaptopFile
from spark_cluster.resources import BuiltImage, Directory, File, Image, Resource
from spark_cluster.resources.built_image import BUILD_S

FOLDER = paths.BUILDS
"""Where the files of builds lie on the nodes."""


class BuildContextFile(Schema):
    """A file of the laptop that a build copies."""

    file: Path
    """where it is on the laptop"""
    sha256: str
    """SHA-256 that it must have"""


class Settings(Schema):
    """Settings of the role `images`; `up` gives them from the recipe."""

    ref: str
    """name and tag, as `docker pull` takes it"""
    digest: str | None = None
    """sha256:..., the same on all nodes"""
    archive: str | None = None
    """file on the node to load instead"""
    dockerfile: str | None = None
    """text to build it from instead"""
    base_archive: str | None = None
    """file on the node to load what the Dockerfile begins from"""
    files: dict[str, BuildContextFile] = Field(default={})
    """files that the Dockerfile copies, by their path in the build"""
    network: bool = True
    """whether the build may fetch something"""
    copies: bool = True
    """an image that is built, has no digest or whose registry does not answer goes over the fabric
    from the node that has it to the others; false: each pulls or builds it"""
    timeout_s: float = BUILD_S
    """longest time of a build, seconds"""


def role(node: Node, settings: Settings) -> Iterator[Resource]:  # noqa: ARG001
    """The image; before one that is built, those that it stands on and the files that it copies."""
    if settings.dockerfile is None:
        yield Image(settings.ref, digest=settings.digest, archive=settings.archive)
        return
    for base in bases(settings.dockerfile):
        yield Image(base, archive=settings.base_archive)
    context = _context(settings)
    yield from _files(context, settings.files)
    yield BuiltImage(
        settings.ref,
        settings.dockerfile,
        context=context,
        files={path: file.sha256 for path, file in settings.files.items()},
        network="host" if settings.network else "none",
        timeout_s=settings.timeout_s,
    )


def _context(settings: Settings) -> str:
    """The folder of the files; another one for other files, so that none is left over in it."""
    if not settings.files:
        return ""
    listed = sorted((path, file.sha256) for path, file in settings.files.items())
    return f"{FOLDER}/{hashlib.sha256(repr(listed).encode()).hexdigest()[:12]}"


def _files(context: str, files: dict[str, BuildContextFile]) -> Iterator[Resource]:
    folders = {str(parent) for path in files for parent in PurePosixPath(path).parents} - {"."}
    if files:
        yield Directory(FOLDER, mode=0o700)
        yield Directory(context, mode=0o700)
    for folder in sorted(folders):
        yield Directory(f"{context}/{folder}", mode=0o755)
    for path, file in files.items():
        # A script may run another one; tools that copy the folder keep what each file may.
        yield File(f"{context}/{path}", content=LaptopFile(file.file), mode=0o755)
