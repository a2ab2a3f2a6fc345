"""Whether what lies on the disk is what the hub's hashes say; each byte is read once.

A process of its own, which a transient unit runs, reads whole models: to verify and to adopt them.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spark_cluster.node import own_program
from spark_cluster.node.open_files import pieces
from spark_cluster.node.store.adopt import adopt, home_cache, make_own
from spark_cluster.node.store.hub_cache import HubCache, alone
from spark_cluster.node.store.manifest import Manifest, StoredFile
from spark_cluster.node.store.progress import Progress
from spark_cluster.node.store.records import Records, manifest_of

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
    progress: Callable[[int], None] = lambda _read: None,
) -> Verified:
    """Read every blob of a revision once and compare it with its hash.

    Args:
        progress: gets the bytes of each piece that was read, from several threads.
    """
    lacking = cache.lacking(manifest)
    missing = {file.blob for file in (*lacking.blobs, *lacking.foreign)}
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


def _is_sound(
    cache: HubCache, manifest: Manifest, file: StoredFile, progress: Callable[[int], None]
) -> bool:
    hasher = file.hasher()
    handle = cache.open(manifest.repository, file)
    try:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        for piece in pieces(handle, file.size, PIECE):
            hasher.update(piece)
            progress(len(piece))
    finally:
        os.close(handle)
    return hasher.fits()


def argv(request: Mapping[str, Any]) -> list[str]:
    """Return the command that does it with this very code.

    Args:
        request: `what` (verify or adopt), `hub`, `ours`, `repository`, `commit`; to adopt
            `home` and `owners` (user ids) of the other cache, and `revision`.
    """
    return own_program.argv(__name__, json.dumps(dict(request), sort_keys=True))


def main(text: str) -> None:
    """Do it; the last line of output is JSON: its result, or `error` and `hint`."""
    own_program.print_answer(lambda: done(json.loads(text)))


def done(request: Mapping[str, Any]) -> dict[str, Any]:
    """Do what is asked and return the result. Raises ResourceError, OSError."""
    ours = Path(request["ours"])
    cache, records = HubCache(Path(request["hub"]), ours), Records(ours)
    repository, commit = str(request["repository"]), str(request["commit"])
    if request["what"] == "adopt":
        other = home_cache(Path(request["home"]), frozenset(map(int, request["owners"])))
        revision = str(request.get("revision", ""))
        manifest = adopt(
            other, cache, records, repository, commit, revision=revision, progress=Progress(0).add
        )
        return {"manifest": manifest.document()}
    manifest = manifest_of(cache, records, repository, commit)
    records.keep(manifest)  # what is removed as damaged is still known to belong to it
    foreign = cache.lacking(manifest).foreign
    if foreign:
        with alone(cache, repository):
            make_own(cache, manifest, foreign)
    return asdict(verify(cache, manifest, Progress(manifest.size).add))
