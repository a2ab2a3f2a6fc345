"""What copies between nodes need: zstd for images, and openssl for the certificate of a copy."""

from __future__ import annotations

from collections.abc import Iterator

from spark_cluster.config.schema import Schema
from spark_cluster.config.topology import Node
from spark_cluster.resources import Package, Resource

TAGS = ("images", "models")
"""`--tags models` copies, too."""


class Settings(Schema):
    """Settings of the role `copies`: none."""


def role(node: Node, settings: Settings) -> Iterator[Resource]:  # noqa: ARG001
    """The packages, from the distribution."""
    programs = ("command:openssl", "command:zstd")
    yield Package("openssl", also=("zstd",), makes=programs, tags=TAGS)
