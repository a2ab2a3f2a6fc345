"""A role's resources as the document that one node gets."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_cluster.errors import Failed
from spark_cluster.node.values import Blob, LaptopFile, Secret
from spark_cluster.resources.base import Resource, to_wire
from spark_cluster.resources.file import File

INLINE = 8 * 1024
"""Bytes up to which a file's content travels with its document; more only when it is lacking."""


@dataclass(frozen=True)
class Document:
    """The set of resources sent to a node, as JSON, and the contents that are sent on demand."""

    resources: list[dict[str, Any]]
    blobs: dict[str, bytes | Path]

    @property
    def longest_step_s(self) -> float:
        """Seconds that one of the resources may take, by its own limit; 0 when none names one."""
        return max((float(r.get("timeout_s", 0.0)) for r in self.resources), default=0.0)


def check(resources: Sequence[Resource], where: str) -> None:
    """Check that these resources can be one document, before any of them is left out.

    Raises:
        Failed: two have one id, or a trigger names a resource that is not among them.
    """
    known: set[str] = set()
    for resource in resources:
        if resource.id in known:
            raise Failed(f"{resource.id} is declared twice", where=where)
        known.add(resource.id)
    for resource in resources:
        for trigger in resource.triggers():
            if trigger not in known:
                raise Failed(
                    f"{resource.id} is to act on changes of {trigger}, which is not declared",
                    where=where,
                )


def document(resources: Sequence[Resource]) -> Document:
    """Pack resources for the wire."""
    blobs: dict[str, bytes | Path] = {}
    return Document([to_wire(_lighter(r, blobs)) for r in resources], blobs)


def _lighter(resource: Resource, blobs: dict[str, bytes | Path]) -> Resource:
    if not isinstance(resource, File) or isinstance(resource.content, (Secret, Blob, type(None))):
        return resource
    content = resource.content
    if isinstance(content, LaptopFile):
        return dataclasses.replace(resource, content=_of_file(content, blobs))
    data = content.encode() if isinstance(content, str) else content
    if len(data) <= INLINE:
        return resource
    blob = Blob(hashlib.sha256(data).hexdigest(), len(data))
    blobs[blob.sha256] = data
    return dataclasses.replace(resource, content=blob)


def _of_file(content: LaptopFile, blobs: dict[str, bytes | Path]) -> bytes | Blob:
    """A file of the laptop: itself when it is small."""
    try:
        if content.path.stat().st_size <= INLINE:
            return content.path.read_bytes()
        blob = content.blob()
    except OSError as error:
        raise Failed(
            f"{content.path}: {error.strerror}", hint="it is to be sent to a node"
        ) from None
    blobs[blob.sha256] = content.path
    return blob
