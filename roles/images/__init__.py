"""The container image, on every node that serves."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pydantic import BaseModel, Field

from spark_cluster.resources import BuiltImage, Image
from spark_cluster.topology import Node

_FROM = re.compile(r"^[ \t]*FROM[ \t]+(?:--\S+[ \t]+)*(\S+)(?:[ \t]+AS[ \t]+(\S+))?", re.M | re.I)


class Settings(BaseModel):
    """Settings of the role `images`; `up` gives them from the recipe."""

    ref: str = Field(description="name and tag, as `docker pull` takes it")
    digest: str | None = Field(default=None, description="sha256:..., the same on all nodes")
    archive: str | None = Field(default=None, description="file on the node to load instead")
    dockerfile: str | None = Field(default=None, description="text to build it from instead")


def role(node: Node, settings: Settings) -> Iterator[Image | BuiltImage]:  # noqa: ARG001
    """The image; before one that is built, those that it stands on."""
    if settings.dockerfile is None:
        yield Image(settings.ref, digest=settings.digest, archive=settings.archive)
        return
    for base in bases(settings.dockerfile):
        yield Image(base)
    yield BuiltImage(settings.ref, settings.dockerfile)


def bases(dockerfile: str) -> list[str]:
    """The images that it begins from, each once, without its own stages and what it computes."""
    found: dict[str, None] = {}
    stages = {"scratch"}
    for base, stage in _FROM.findall(dockerfile):
        if base.lower() not in stages and "$" not in base:
            found[base] = None
        stages.add(stage.lower())
    return list(found)
