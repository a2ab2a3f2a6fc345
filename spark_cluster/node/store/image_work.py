"""Writing an image out of Docker and giving it to Docker, in a process of its own (a unit)."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spark_cluster.node import own_program
from spark_cluster.node.store import image_blobs
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.manifest import Manifest
from spark_cluster.node.store.progress import Progress


def argv(label: str) -> list[str]:
    """Return the command that does it with this very code.

    Args:
        label: what is done with which image, so that a later run finds the same work.
    """
    return own_program.argv(__name__, label)


def main(_label: str) -> None:
    """Do what standard input asks for; the last line of output is its result, JSON."""
    own_program.print_answer(lambda: done(json.load(sys.stdin)))


def done(given: Mapping[str, Any]) -> dict[str, Any]:
    """Export (`ref`, `repository`, `commit`, `size`) or load (`manifest`) an image of `hub`; `ours`
    is the folder of the locks.

    Raises:
        ResourceError: Docker refuses it.
        OSError: the disk is full or broken.
    """
    cache = HubCache(Path(given["hub"]), Path(given["ours"]))
    if given["what"] == "export":
        progress = Progress(int(given.get("size", 0)))
        found, layers = image_blobs.export(
            cache, str(given["repository"]), str(given["commit"]), str(given["ref"]), progress.add
        )
        return {"manifest": found.document(), "layers": layers}
    manifest = Manifest.from_document(given["manifest"])
    return {"loaded": image_blobs.load(cache, manifest, Progress(manifest.size).add)[:1000]}
