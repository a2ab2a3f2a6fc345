"""Reading whole models: whether each byte is what the hub's hashes say, and copies of root's own.

A process of its own, which a transient unit runs, verifies and adopts models, and hashes the files
of plain folders; each byte is read once.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spark_cluster.node import own_program
from spark_cluster.node.beneath import Folder
from spark_cluster.node.open_files import pieces
from spark_cluster.node.store.hub_cache import HubCache, MissingFiles, OnRead, alone
from spark_cluster.node.store.manifest import Manifest, StoredFile
from spark_cluster.node.store.plain_folder import PlainFolder
from spark_cluster.node.store.progress import Progress
from spark_cluster.node.values import ResourceError

PIECE = 4 << 20
"""Bytes that are read and hashed at a time; hashlib lets other threads run meanwhile."""

AT_A_TIME = 4
"""Files that are read side by side: one core hashes about 1.5 to 2 GB/s with SHA instructions."""


@dataclass(frozen=True)
class Verified:
    """What reading a revision has shown.

    Attributes:
        damaged: files whose content is not what their hash says, by path.
        missing: files that are not there, not whole, or that others can write.
        unchecked: files whose name is no hash; their size is right.
        read: bytes.
    """

    damaged: tuple[str, ...]
    missing: tuple[str, ...]
    unchecked: tuple[str, ...]
    read: int

    @property
    def sound(self) -> bool:
        """True if nothing is damaged or missing."""
        return not self.damaged and not self.missing


def verify(
    cache: HubCache,
    manifest: Manifest,
    progress: OnRead = lambda _read: None,
) -> Verified:
    """Read every blob of a revision once and compare it with its hash.

    Args:
        progress: gets the bytes of each piece that was read, from several threads.
    """
    files = cache.missing(manifest)
    missing = {file.blob for file in (*files.blobs, *files.foreign)}
    hashed = [f for f in manifest.blobs.values() if f.algorithm and f.blob not in missing]
    with ThreadPoolExecutor(AT_A_TIME) as pool:
        sound = list(pool.map(lambda file: _is_sound(cache, manifest, file, progress), hashed))
    damaged = {file.blob for file, fits in zip(hashed, sound, strict=True) if not fits}
    return Verified(
        damaged=_paths(manifest, damaged),
        missing=_paths(manifest, missing),
        unchecked=tuple(f.path for f in manifest.files if not f.algorithm),
        read=sum(file.size for file in hashed),
    )


def _paths(manifest: Manifest, blobs: set[str]) -> tuple[str, ...]:
    return tuple(file.path for file in manifest.files if file.blob in blobs)


def _is_sound(cache: HubCache, manifest: Manifest, file: StoredFile, progress: OnRead) -> bool:
    hasher = file.hasher()
    handle = cache.open(manifest.repository, file)
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        for piece in pieces(handle, file.size, PIECE):
            hasher.update(piece)
            progress(len(piece))
    finally:
        os.close(handle)
    return file.fits(hasher)


CACHE = Path(".cache/huggingface/hub")
"""Below a home: where other tools download to."""


def adopt(
    other: HubCache,
    cache: HubCache,
    repository: str,
    commit: str,
    *,
    revision: str = "",
    progress: OnRead = lambda _read: None,
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
    manifest = other.found(repository, commit)
    with alone(cache, repository):
        cache.files.make(cache.blobs(repository))
        for file in make_own(cache, manifest, progress).blobs:
            if not _copied(other.open(repository, file), cache, repository, file, progress):
                raise ResourceError(
                    f"{other.blob(repository, file.blob)} is damaged: its content is not what its "
                    "hash says",
                    "it is left as it is; `spark-cluster models pull` fetches the model anew",
                )
        cache.publish(manifest, revision)
        cache.records.keep(manifest)
    return manifest


def make_own(
    cache: HubCache, manifest: Manifest, progress: OnRead = lambda _read: None
) -> MissingFiles:
    """Put copies in the place of blobs that someone else can still write: another user's, and hard
    links as earlier versions made them to a user's cache. What is not what its hash says is
    removed. Only while the caller has the repository `alone`.

    Returns:
        What of the manifest is not there then.

    Raises:
        OSError: it cannot be read or written.
    """
    missing = cache.missing(manifest)
    for file in missing.foreign:
        blob = cache.blob(manifest.repository, file.blob)
        if not _copied(cache.files.open(blob), cache, manifest.repository, file, progress):
            cache.files.remove(blob)
    return cache.missing(manifest) if missing.foreign else missing


def _copied(
    source: int, cache: HubCache, repository: str, file: StoredFile, progress: OnRead
) -> bool:
    """Copy a blob, and return whether the copy is what its hash says; else nothing is left of it.

    It is begun anew: what another source has left half may be damaged, and this one is sound.

    Args:
        source: handle of it, which is closed.
    """
    cache.files.remove(cache.incomplete(repository, file.blob))
    try:
        with cache.half(repository, file, progress, source) as half:
            for piece in pieces(source, file.size, at=half.size):
                half.add(piece)
                progress(len(piece))
            return half.settle()
    except BaseException:
        cache.files.remove(cache.incomplete(repository, file.blob))
        raise
    finally:
        os.close(source)


def homes(root: Path, user: str) -> dict[str, HubCache]:
    """Return the hub caches of root and of the user who has logged in, as other tools fill them, by
    their folder on the node.

    Each folder below the home must belong to its user or root, and so must each file.

    Args:
        root: of the node.
        user: name; one that the node does not know has no cache.
    """
    users = {0: root / "root"}
    with contextlib.suppress(KeyError):
        entry = pwd.getpwnam(user)
        users[entry.pw_uid] = root / entry.pw_dir.lstrip("/")
    found = {}
    for uid, home in users.items():
        cache = HubCache(home / CACHE, files=Folder(home, frozenset({os.geteuid(), uid})))
        with contextlib.suppress(OSError), cache.files.at(cache.root):
            found[f"/{cache.root.relative_to(root)}"] = cache
    return found


def argv(request: Mapping[str, Any]) -> list[str]:
    """Return the command that does it with this very code.

    Args:
        request: `what`, and `ours`; to verify and to adopt `hub`, `repository`, `commit`; to adopt
            `root` and `user` (see `homes`), `other`, the folder of the other cache, and `revision`;
            of a plain folder `folder` and `exact` (see PlainFolder).
    """
    return own_program.argv(__name__, json.dumps(dict(request), sort_keys=True))


def main(text: str) -> None:
    """Do it; the last line of output is JSON: its result, or `error` and `hint`."""
    own_program.print_answer(lambda: done(json.loads(text)))


def done(request: Mapping[str, Any]) -> dict[str, Any]:
    """Do what is asked and return the result. Raises ResourceError, OSError."""
    ours = Path(request["ours"])
    if request["what"] == "folder":
        plain = PlainFolder(Path(request["folder"]), ours, exact=bool(request["exact"]))
        return {"manifest": plain.manifest(Progress(0).add).document()}
    cache = HubCache(Path(request["hub"]), ours)
    repository, commit = str(request["repository"]), str(request["commit"])
    if request["what"] == "adopt":
        place = str(request["other"])
        other = homes(Path(request["root"]), str(request["user"])).get(place)
        if other is None:
            raise ResourceError(
                f"{place[:200]} is not the hub cache of root or of the user who has logged in",
                "log in as the user whose model it is, or pull it: `spark-cluster models pull`",
            )
        revision = str(request.get("revision", ""))
        manifest = adopt(
            other, cache, repository, commit, revision=revision, progress=Progress(0).add
        )
        return {"manifest": manifest.document()}
    manifest = cache.known(repository, commit)
    cache.records.keep(manifest)  # what is removed as damaged is still known to belong to it
    if cache.missing(manifest).foreign:
        with alone(cache, repository):
            make_own(cache, manifest)
    return asdict(verify(cache, manifest, Progress(manifest.size).add))
