"""The files of a recipe's build: that they are the ones it was made with, and where they go."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spark_cluster.config.image_build import context_path
from spark_cluster.errors import Refused

if TYPE_CHECKING:
    from spark_cluster.config.image_build import Build, BuildFile, BuildStep

LARGEST = 16 << 20
"""Bytes of one file of a step; patches and Python files have a thousandth of it."""


def build_settings(build: Build) -> dict[str, Any]:
    """Return what the role `images` gets for a build with steps.

    Raises:
        Refused: a file is missing, or is another one than the recipe says.
    """
    files = {
        context_path(step, file): {"file": _checked(step, file), "sha256": file.sha256}
        for step in build.steps
        for file in step.files
    }
    return {
        "base_archive": build.base.archive if build.base else None,
        "files": files,
        "network": build.network,
        "timeout_s": build.timeout_s,
    }


def _checked(step: BuildStep, file: BuildFile) -> Path:
    path = Path(file.file)
    where = f"step {step.name} of image.build"
    if not path.is_file():
        raise Refused(
            f"the file {path} is not on this machine",
            where=where,
            hint="`file` is relative to the recipe; spark-cluster recipes import writes it there",
        )
    size = path.stat().st_size
    if size > LARGEST:
        raise Refused(
            f"the file {path} has {size >> 20} MiB, expected at most {LARGEST >> 20}", where=where
        )
    found = hashlib.sha256(path.read_bytes()).hexdigest()
    if found != file.sha256:
        raise Refused(
            f"the file {path} has the SHA-256 {found[:12]}..., expected {file.sha256[:12]}...",
            where=where,
            hint="it was changed after the import: read it, and write its own sha256 into the "
            "recipe (sha256sum) if that is what should run",
        )
    return path
