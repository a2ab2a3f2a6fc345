"""Models in hub caches, made for tests."""

import hashlib
import random
from pathlib import Path

from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.manifest import GIT_SHA1, SHA256, Manifest, StoredFile

REPOSITORY = "org/model"
COMMIT = "c" * 40


def file_of(path: str, content: bytes, algorithm: str = SHA256) -> StoredFile:
    """A file with this content."""
    if algorithm == GIT_SHA1:
        header = f"blob {len(content)}\0".encode()
        blob = hashlib.sha1(header + content, usedforsecurity=False).hexdigest()
    else:
        blob = hashlib.sha256(content).hexdigest()
    return StoredFile(path, len(content), blob, algorithm)


def model(
    root: Path,
    contents: dict[str, bytes],
    revision: str = "main",
    commit: str = COMMIT,
    repository: str = REPOSITORY,
    ours: Path | None = None,
) -> Manifest:
    """A whole model in a hub cache; names that end in .json are small files of git.

    Args:
        ours: the node's folder for manifests and locks, where it is another one.
    """
    cache, files = HubCache(root, ours), []
    for path, content in contents.items():
        file = file_of(path, content, GIT_SHA1 if path.endswith(".json") else SHA256)
        blob = cache.blob(repository, file.blob)
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(content)
        files.append(file)
    document = {"repository": repository, "commit": commit, "files": [vars(f) for f in files]}
    manifest = Manifest.from_document(document)
    cache.publish(manifest, revision)
    return manifest


def content(size: int, seed: int = 0) -> bytes:
    """Bytes that no two places have alike."""
    return random.Random(seed).randbytes(size)
