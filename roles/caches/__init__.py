"""Folders on the node for what compilers and the hub keep: a restart is then no cold start."""

from __future__ import annotations

from collections.abc import Iterator

from pydantic import BaseModel, Field

from spark_cluster.cluster import Spark
from spark_cluster.resources import Directory
from spark_cluster.serving.engine import CACHES


class Settings(BaseModel):
    """Settings of the role `caches`."""

    root: str = Field(default="/var/cache/spark-cluster/engine", description="folder on the node")


def role(node: Spark, settings: Settings) -> Iterator[Directory]:  # noqa: ARG001
    """One folder a cache."""
    yield Directory(settings.root, mode=0o755)
    for name in CACHES.values():
        yield Directory(f"{settings.root}/{name}", mode=0o755)
