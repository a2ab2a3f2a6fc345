"""Take a whole model over from another hub cache of this machine, without a download."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from spark_cluster.node.durable import make_folder
from spark_cluster.node.store.hub_cache import HubCache, alone, make_durable
from spark_cluster.node.store.manifest import Manifest, StoredFile
from spark_cluster.node.store.records import Records
from spark_cluster.node.store.revision import adopted
from spark_cluster.node.values import ResourceError

PIECE = 4 << 20
"""Bytes that are read, hashed and perhaps written at a time."""

Progress = Callable[[int], None]


def adopt(
    other: HubCache,
    cache: HubCache,
    records: Records,
    repository: str,
    commit: str,
    *,
    revision: str = "",
    progress: Progress = lambda _read: None,
) -> Manifest:
    """Take a revision over, by hard links where both caches are on one disk, else by copies.

    Each byte is read once, for the hash; a file that is hard-linked stays its owner's.

    Args:
        other: the cache of another tool or user, which is not changed.
        revision: branch or tag that has this commit.

    Raises:
        ResourceError: it is not whole there, or a content is not what its hash says.
    """
    manifest = adopted(other, repository, commit)
    with alone(cache, repository):
        make_folder(cache.folder(repository) / "blobs", 0o755)
        for file in cache.lacking(manifest).blobs:
            _take(other, cache, repository, file, progress)
        cache.publish(manifest, revision)
        records.keep(manifest)
    return manifest


def _take(
    other: HubCache, cache: HubCache, repository: str, file: StoredFile, progress: Progress
) -> None:
    source = other.blob(repository, file.blob)
    staged = cache.incomplete(repository, f"{file.blob}.adopted")
    handle = os.open(source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb", buffering=0) as opened:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_size != file.size:
            raise ResourceError(f"{source} was changed meanwhile")
        staged.unlink(missing_ok=True)
        linked = _hard_link(handle, staged)
        try:
            hasher = file.hasher()
            with contextlib.ExitStack() as stack:
                out = None if linked else stack.enter_context(staged.open("xb"))
                while piece := opened.read(PIECE):
                    hasher.update(piece)
                    progress(len(piece))
                    if out is not None:
                        out.write(piece)
            if not hasher.fits():
                raise ResourceError(
                    f"{source} is damaged: its content is not what its hash says",
                    "it is left as it is; `spark-cluster models pull` fetches the model anew",
                )
            make_durable(staged, cache.blob(repository, file.blob))
        finally:
            staged.unlink(missing_ok=True)


def _hard_link(handle: int, target: Path) -> bool:
    """Give the very file that is open another name; False where that cannot be."""
    try:
        # With a folder given, the link is followed (linkat), which without one it is not.
        source = f"/proc/self/fd/{handle}"
        os.link(source, target, src_dir_fd=handle, follow_symlinks=True)
    except OSError:  # another disk, or a file system without hard links
        return False
    return True


def homes(root: Path) -> list[Path]:
    """The hub caches of the users of this machine, where other tools download to."""
    found = [root / "root", *sorted((root / "home").glob("*"))]
    caches = [home / ".cache" / "huggingface" / "hub" for home in found]
    return [cache for cache in caches if cache.is_dir()]
