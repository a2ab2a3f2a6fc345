"""Take blobs over as copies of root's own: from another hub cache of this machine, or in place."""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Callable, Iterable
from pathlib import Path

from spark_cluster.node.beneath import Folder
from spark_cluster.node.open_files import clone, pieces, write_whole
from spark_cluster.node.store.hub_cache import HubCache, alone
from spark_cluster.node.store.manifest import Manifest, StoredFile
from spark_cluster.node.store.records import Records, adopted
from spark_cluster.node.values import ResourceError

Progress = Callable[[int], None]

CACHE = Path(".cache/huggingface/hub")
"""Below a home: where other tools download to."""


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
    """Take a revision over by copies, which share their blocks where the file system can do that.

    The copy is what is hashed, so that nothing that its owner does meanwhile or later counts.

    Args:
        other: the cache of another tool or user, which is not changed.
        revision: branch or tag that has this commit.

    Raises:
        ResourceError: it is not whole there, or a content is not what its hash says.
        OSError: it cannot be read or written.
    """
    manifest = adopted(other, repository, commit)
    with alone(cache, repository):
        cache.files.make(cache.blobs(repository))
        make_own(cache, manifest, cache.lacking(manifest).foreign, progress)
        for file in cache.lacking(manifest).blobs:
            if not _copied(other.open(repository, file), cache, repository, file, progress):
                raise ResourceError(
                    f"{other.blob(repository, file.blob)} is damaged: its content is not what its "
                    "hash says",
                    "it is left as it is; `spark-cluster models pull` fetches the model anew",
                )
        cache.publish(manifest, revision)
        records.keep(manifest)
    return manifest


def make_own(
    cache: HubCache,
    manifest: Manifest,
    foreign: Iterable[StoredFile],
    progress: Progress = lambda _read: None,
) -> None:
    """Put copies in the place of blobs that someone else can still write: another user's, and hard
    links as earlier versions made them to a user's cache. What is not what its hash says is
    removed. Only while the caller has the repository `alone`.

    Args:
        foreign: of what the manifest lacks (`Lacking.foreign`).

    Raises:
        OSError: it cannot be read or written.
    """
    for file in foreign:
        blob = cache.blob(manifest.repository, file.blob)
        if not _copied(cache.files.open(blob), cache, manifest.repository, file, progress):
            cache.files.remove(blob)


def _copied(
    source: int, cache: HubCache, repository: str, file: StoredFile, progress: Progress
) -> bool:
    """Copy a blob, and return whether the copy is what its hash says; else nothing is left of it.

    The copy is root's alone until then: what a name leads to may be any file.

    Args:
        source: handle of it, which is closed.
    """
    staged = cache.incomplete(repository, f"{file.blob}.adopted")
    with contextlib.ExitStack() as stack:
        stack.callback(os.close, source)
        cache.files.remove(staged)
        target = cache.files.create(staged, 0o600)
        stack.callback(os.close, target)
        stack.callback(cache.files.remove, staged)
        hasher = file.hasher()
        cloned = clone(source, target)
        for piece in pieces(target if cloned else source, file.size):
            hasher.update(piece)
            progress(len(piece))
            if not cloned:
                write_whole(target, piece)
        if os.fstat(target).st_size != file.size or not hasher.fits():
            return False
        os.fchmod(target, 0o644)
        cache.files.settle(target, staged, cache.blob(repository, file.blob))
    return True


def homes(root: Path, user: str) -> list[HubCache]:
    """Return the hub caches of root and of the user who has logged in, as other tools fill them.

    Each folder below the home must belong to its user or root, and so must each file.

    Args:
        root: of the node.
        user: name; one that the node does not know has no cache.
    """
    users = {0: root / "root"}
    with contextlib.suppress(KeyError):
        entry = pwd.getpwnam(user)
        users[entry.pw_uid] = root / entry.pw_dir.lstrip("/")
    return [found for uid, home in users.items() if (found := _cache_in(home, uid)) is not None]


def home_cache(home: Path, owners: frozenset[int]) -> HubCache:
    """Return the hub cache in a home; what does not belong to the owners is not read."""
    return HubCache(home / CACHE, files=Folder(home, owners))


def _cache_in(home: Path, uid: int) -> HubCache | None:
    cache = home_cache(home, frozenset({os.geteuid(), uid}))
    with contextlib.suppress(OSError), cache.files.at(cache.root):
        return cache
    return None
