"""Models in the hub cache of a node that is a folder."""

from pathlib import Path

import model_content
from model_content import REPOSITORY, content

from spark_cluster.node.store.manifest import Manifest

COMMIT = model_content.COMMIT
SIZES = {"empty": 0, "config.bin": 1, "model.safetensors": 9_000_000}


def model(root: Path, repository: str = REPOSITORY, ours: Path | None = None) -> Manifest:
    """Write a model of three files into a hub cache.

    Args:
        root: the cache's folder.
        ours: the node's folder for manifests and locks.
    """
    contents = {name: content(size, size) for name, size in SIZES.items()}
    return model_content.model(root, contents, repository=repository, ours=ours)
