"""Reading whole models: whether each byte is what the hub's hashes say, and copies of root's own.

A process of its own, which a transient unit runs, verifies and adopts models, and hashes the files
of plain folders (`PlainFolder`); each byte is read once.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import pwd
import stat
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from spark_cluster.node import own_program
from spark_cluster.node.beneath import Folder, NotFollowed, clone, pieces, write_all
from spark_cluster.node.durable import put_file, read_object
from spark_cluster.node.output import duration
from spark_cluster.node.safe_paths import closing_handle
from spark_cluster.node.store.hub_cache import HubCache, MissingFiles, OnRead, alone
from spark_cluster.node.store.manifest import MOST_FILES, SHA256, Manifest, StoredFile, check_path
from spark_cluster.node.values import ResourceError, explain

# A plain folder of files in the role of a hub cache, so that `models copy` can move it.
#
# Its manifest is computed from the files: SHA-256 of each, kept with size and time of change, so
# that what has not changed since is not read again. Names that begin with a dot are left out: they
# are notes of tools, ours included; an exact copy has them too, and the times of its files.

INCOMING = ".spark-cluster-incoming"
"""Below the folder: files that are not whole yet."""
COMPLETE = ".complete"
"""Below the folder: the note of a download, which is of this node."""
STAGED = ".spark-cluster-new"
_BLOCK = 1 << 20


class PlainFolder(HubCache):
    """A folder of plain files on this machine.

    Args:
        root: the folder; it may be any user's.
        ours: where the hashes are kept; on a node `paths.FOLDERS`.
        read: a file whose hash is not known is read; otherwise it counts as missing.
        exact: its manifest has hidden files and the times of all.
    """

    def __init__(self, root: Path, ours: Path, *, read: bool = True, exact: bool = False) -> None:
        super().__init__(root, ours)
        name = hashlib.sha256(str(root).encode()).hexdigest()[:16]
        self.repository = f"folder/{name}"
        self._record = ours / f"{name}.json"
        self._read = read
        self._exact = exact
        self._paths: dict[str, str] = {}
        self._hashes = _read(self._record)

    def blobs(self, repository: str) -> Path:  # noqa: ARG002
        return self.root / INCOMING

    def blob(self, repository: str, blob: str) -> Path:
        if blob not in self._paths:
            raise ResourceError(f"{self.root}: {blob[:16]} is of no file of {repository}")
        return self.root / self._paths[blob]

    def manifest(self, progress: Callable[[int], None] = lambda _read: None) -> Manifest:
        """Return what the folder consists of; files that changed are read once.

        Raises:
            ResourceError: it is no folder, or has no file.
        """
        files = list[StoredFile]()
        for path, about in self._files():
            digest = self._digest(path, about, progress)
            changed = about.st_mtime_ns if self._exact else 0
            files.append(StoredFile(path, about.st_size, digest, SHA256, changed))
        self._hashes = {file.path: self._hashes[file.path] for file in files}
        self._keep()
        listed = json.dumps([[file.path, file.blob, file.changed] for file in files])
        commit = hashlib.sha256(listed.encode()).hexdigest()[:40]
        return self.adopt(Manifest(self.repository, commit, tuple(files)))

    def adopt(self, manifest: Manifest) -> Manifest:
        """Take the names of a manifest's files; return it."""
        self._paths = {file.blob: file.path for file in reversed(manifest.files)}
        self._exact = any(file.changed for file in manifest.files)
        return manifest

    def missing(self, manifest: Manifest) -> MissingFiles:
        """Return the files that are not there or have other content."""
        self.adopt(manifest)
        here = {file.path: self._is_here(file) for file in manifest.files}
        blobs = [f for f in manifest.blobs.values() if not here[self._paths[f.blob]]]
        if self._read:
            self._keep()
            for file in blobs:
                self.files.make((self.root / self._paths[file.blob]).parent)
        begun = [self._begun(manifest, file) for file in blobs]
        links = tuple(
            file.path for file in manifest.files if not (here[file.path] and self._in_time(file))
        )
        return MissingFiles(tuple(blobs), (), sum(begun), links)

    def publish(self, manifest: Manifest, revision: str = "") -> None:  # noqa: ARG002
        """Give equal files their content, and take note of all hashes.

        Args:
            revision: of no use here.

        Raises:
            ResourceError: a file is not there.
        """
        missing = self.missing(manifest)
        if missing.blobs:
            raise ResourceError(f"{self.root}: {missing.blobs[0].path} is not complete yet")
        for file in (file for file in manifest.files if file.path in missing.links):
            path, source = self.root / file.path, self.blob(manifest.repository, file.blob)
            self.files.make(path.parent)
            if path != source:
                self._duplicate(file, source, path)
            if file.changed:
                with closing_handle(self.files.open(path)) as handle:
                    os.utime(handle, ns=(file.changed, file.changed))
        self.files.remove(INCOMING)
        self.manifest()

    def _duplicate(self, file: StoredFile, source: Path, target: Path) -> None:
        staged = target.with_name(f".{target.name}{STAGED}")
        self.files.remove(staged)
        with (
            closing_handle(self._opened(source)) as opened,
            closing_handle(self.files.create(staged)) as new,
        ):
            if not clone(opened, new):
                for piece in pieces(opened, file.size):
                    write_all(new, piece)
            self.files.settle(new, staged, target)

    def _begun(self, manifest: Manifest, file: StoredFile) -> int:
        with contextlib.suppress(OSError):
            half = self.incomplete(manifest.repository, file.blob)
            return min(self.files.stat(half).st_size, file.size)
        return 0

    def _is_here(self, file: StoredFile) -> bool:
        try:
            about = self.files.stat(file.path)
        except OSError:
            return False
        if not stat.S_ISREG(about.st_mode) or about.st_size != file.size:
            return False
        if not self._read and not self._is_known(file.path, about):
            return False
        return self._digest(file.path, about, lambda _read: None) == file.blob

    def _in_time(self, file: StoredFile) -> bool:
        return not file.changed or self.files.stat(file.path).st_mtime_ns == file.changed

    def _is_known(self, path: str, about: os.stat_result) -> bool:
        return self._hashes.get(path, ())[:2] == (about.st_size, about.st_mtime_ns)

    def _digest(self, path: str, about: os.stat_result, progress: Callable[[int], None]) -> str:
        """Return the hash of a file, which is read where it has changed."""
        if self._is_known(path, about):
            return self._hashes[path][2]
        found = hashlib.sha256()
        with closing_handle(self._opened(path)) as handle:
            for piece in pieces(handle, about.st_size, _BLOCK):
                found.update(piece)
                progress(len(piece))
        self._hashes[path] = (about.st_size, about.st_mtime_ns, found.hexdigest())
        return found.hexdigest()

    def _files(self) -> list[tuple[str, os.stat_result]]:
        """Regular files in order of name, with their path. Raises ResourceError."""
        try:
            walk = self.files.walk(enters=self._counts)
            entries = [entry for entry in walk if self._counts(entry.path)]
        except OSError as error:
            raise ResourceError(
                f"{self.root} is not a folder on this node: {explain(error)}"
            ) from error
        if not 0 < len(entries) <= MOST_FILES:
            raise ResourceError(f"{self.root} has no file, or more than {MOST_FILES}")
        for path, about, _target in entries:
            if not stat.S_ISREG(about.st_mode):
                raise ResourceError(
                    f"{self.root / path} is a link or no file; a folder of plain files is copied",
                    "replace it by the file itself; a hub cache is copied by its repository's name",
                )
        return sorted((check_path(path), about) for path, about, _target in entries)

    def open(self, repository: str, file: StoredFile) -> int:
        """Open a file that is whole; it may be any user's. Raises OSError."""
        path = self.blob(repository, file.blob)
        handle = self._opened(path)
        if os.fstat(handle).st_size == file.size:
            return handle
        os.close(handle)
        raise OSError(0, "its size is not the one that it had", str(path))

    def _opened(self, path: Path | str) -> int:
        """Open a regular file that the folder's owner has not borrowed from another user."""
        handle = self.files.open(path)
        about = os.fstat(handle)
        with self.files.at() as folder:
            owner = os.fstat(folder).st_uid
        if about.st_nlink == 1 or about.st_uid == owner:
            return handle
        os.close(handle)
        what = f"is a hard link to a file of another user (uid {about.st_uid})"
        raise NotFollowed(self.root / path, what)

    def _counts(self, path: str) -> bool:
        name = path.rpartition("/")[2]
        if self._exact:
            return name not in (INCOMING, COMPLETE) and not name.endswith(STAGED)
        return not name.startswith(".")

    def _keep(self) -> None:
        put_file(self._record, json.dumps(self._hashes).encode())


def _read(record: Path) -> dict[str, tuple[int, int, str]]:
    """Return what is noted of files, by path: bytes, time of change in ns, SHA-256."""
    with contextlib.suppress(TypeError, ValueError):
        found = read_object(record).items()
        return {path: (int(size), int(time), str(digest)) for path, (size, time, digest) in found}
    return {}  # all is read again


# How far the reading or fetching of a model is, in lines for people.

EVERY_S = 1.0
"""Seconds between two lines."""


class ByteProgress:
    """Prints lines about bytes that were read or came, at most one in EVERY_S.

    Args:
        done: what was done with them: "read", "here".
        total: bytes; 0 where it is not known.
        have: bytes that were done before.
    """

    def __init__(self, total: int, done: str = "read", have: int = 0) -> None:
        self._total, self._done, self._have = total, done, have
        self._began = self._shown = time.monotonic()
        self._lock = threading.Lock()
        self.read = 0

    def add(self, size: int) -> None:
        """Take note of bytes, from any thread."""
        with self._lock:
            self.read += size
            now = time.monotonic()
            if now - self._shown >= EVERY_S:
                self._shown = now
                print(self.line(now - self._began), flush=True)

    @property
    def left(self) -> int:
        """Bytes that are still to come."""
        return max(0, self._total - self._have - self.read)

    def line(self, seconds: float) -> str:
        """Return what is done after so many seconds, at which speed, and the time left."""
        return progress_line(self._done, self._have + self.read, self._total, self.read, seconds)


def progress_line(what: str, done: int, total: int, moved: int, seconds: float) -> str:
    """Return how far something is, its mean speed, and the time left.

    Args:
        what: was done with the bytes: "read", "from spark1".
        done: bytes that are done, those of earlier times with them.
        total: bytes; 0 where it is not known.
        moved: bytes that were done in these seconds.
    """
    size = f"{done / 1e9:.1f} of {total / 1e9:.1f} GB" if total else f"{done / 1e9:.1f} GB"
    if not moved or seconds <= 0:
        return f"{size} {what}"
    rate = moved / seconds
    left = f", {duration(max(0, total - done) / rate)} left" if total else ""
    return f"{size} {what}, {rate / 1e6:.0f} MB/s{left}"


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
    with closing_handle(cache.open(manifest.repository, file)) as handle:
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_SEQUENTIAL)
        for piece in pieces(handle, file.size, PIECE):
            hasher.update(piece)
            progress(len(piece))
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
        with (
            closing_handle(source),
            cache.half(repository, file, progress, source) as half,
        ):
            for piece in pieces(source, file.size, at=half.size):
                half.add(piece)
                progress(len(piece))
            return half.settle()
    except BaseException:
        cache.files.remove(cache.incomplete(repository, file.blob))
        raise


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
        return {"manifest": plain.manifest(ByteProgress(0).add).document()}
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
            other, cache, repository, commit, revision=revision, progress=ByteProgress(0).add
        )
        return {"manifest": manifest.document()}
    manifest = cache.known(repository, commit)
    cache.records.keep(manifest)  # what is removed as damaged is still known to belong to it
    if cache.missing(manifest).foreign:
        with alone(cache, repository):
            make_own(cache, manifest)
    return asdict(verify(cache, manifest, ByteProgress(manifest.size).add))
