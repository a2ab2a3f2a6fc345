"""The container image, on every node that serves."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, Field

from spark_cluster.cluster import Spark
from spark_cluster.resources import Image


class Settings(BaseModel):
    """Settings of the role `images`; `up` gives them from the recipe."""

    ref: str = Field(description="name and tag, as `docker pull` takes it")
    digest: str | None = Field(default=None, description="sha256:..., the same on all nodes")
    archive: str | None = Field(default=None, description="file on the node to load instead")


def role(node: Spark, settings: Settings) -> Iterator[Image]:  # noqa: ARG001
    """The image."""
    yield Image(settings.ref, digest=settings.digest, archive=settings.archive)
