"""Models in the hub cache of a node that is a folder."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path

from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.manifest import Manifest

COMMIT = "c" * 40


def model(root: Path, repository: str = "org/model", ours: Path | None = None) -> Manifest:
    """Write a model of three files into a hub cache.

    Args:
        root: the cache's folder.
        ours: the node's folder for manifests and locks.
    """
    cache, files = HubCache(root, ours), []
    for path, size in (("empty", 0), ("config.bin", 1), ("model.safetensors", 9_000_000)):
        content = random.Random(size).randbytes(size)
        name = hashlib.sha256(content).hexdigest()
        blob = cache.blob(repository, name)
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        files.append({"path": path, "size": size, "blob": name, "algorithm": "sha256"})
    manifest = Manifest.from_document({"repository": repository, "commit": COMMIT, "files": files})
    cache.publish(manifest, "main")
    return manifest
