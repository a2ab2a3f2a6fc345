"""The hub cache: the layout in which Hugging Face's library keeps models, so that every tool finds
them (huggingface.co/docs/huggingface_hub/guides/manage-cache).

    models--ORG--NAME/refs/main              the commit that a branch or tag has
    models--ORG--NAME/snapshots/COMMIT/FILE  a link to its content
    models--ORG--NAME/blobs/HASH             the content; HASH.incomplete while it is fetched
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import stat
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from spark_cluster.node import durable
from spark_cluster.node.beneath import Folder, NotFollowed, clone, is_own, pieces, write_all
from spark_cluster.node.output import counted
from spark_cluster.node.replies import decoded
from spark_cluster.node.safe_paths import closing_handle
from spark_cluster.node.store.manifest import (
    INCOMPLETE,
    LOCKS,
    MOST_FILES,
    PREFIX,
    BadManifest,
    Manifest,
    StoredFile,
    algorithm_of,
    check_revision,
    folder_name,
    is_commit,
    is_repository,
    manifest_path,
    repository_of,
    trusted,
)
from spark_cluster.node.values import ResourceError, explain

INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
LARGEST_INDEX = 64 << 20
"""Bytes; that of the largest public models has about 10 MB."""

_WEIGHTS = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".nemo")
_SHARD = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})(?P<end>\.\w+)")

PULL = "`spark-cluster models pull` fetches what is missing"

OnRead = Callable[[int], object]
"""Gets the bytes of each piece that was read."""

LARGEST_REF = 100
"""Bytes that are read of a file below `refs/`; a commit has 40."""

WAIT_S = 6 * 3600.0
"""Seconds that one writer waits for another one of the same model."""

TELL_S = 1.0
"""Seconds after which it says so."""


@dataclass(frozen=True)
class MissingFiles:
    """What of a manifest is not there.

    Attributes:
        blobs: those that are not whole, in the order of the files.
        foreign: those that are whole by name and size, and that someone else can still write:
            another user's, or with a second name (a hard link). A copy of our own is made of them
            (verify.py), nothing is fetched.
        begun: bytes that half files of them have.
        links: paths whose link is missing or leads elsewhere.
    """

    blobs: tuple[StoredFile, ...]
    foreign: tuple[StoredFile, ...]
    begun: int
    links: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes to fetch."""
        return max(0, sum(file.size for file in self.blobs) - self.begun)

    @property
    def nothing(self) -> bool:
        """True if the revision is whole."""
        return not self.blobs and not self.foreign and not self.links

    @property
    def problem(self) -> str:
        """What is missing, in words; empty if nothing is."""
        if self.foreign:
            return (
                f"others can write {counted(len(self.foreign), 'file')}; `models pull` copies them"
            )
        if self.blobs:
            return f"missing: {counted(len(self.blobs), 'file')} with {self.size} bytes"
        return f"missing or broken: {counted(len(self.links), 'link')}" if self.links else ""

    @property
    def paths(self) -> list[str]:
        """One path of each blob that is not there or not our own."""
        return [file.path for file in (*self.blobs, *self.foreign)]


class HubCache:
    """A hub cache on this machine. Everything in it is reached by handles (`beneath`).

    Args:
        root: its folder, which `models--...` lie in.
        ours: folder of the locks and of our own notes (paths.MODELS); without it nothing may be
            written into the cache.
        files: where it is another user's: the home that it is in, and who may own what is there.
    """

    def __init__(self, root: Path, ours: Path | None = None, files: Folder | None = None) -> None:
        self.root = root
        self.ours = ours
        self.files = files or Folder(trusted(root))

    @property
    def records(self) -> Records:
        """Our own notes on its models. Raises ValueError: it is another tool's."""
        if self.ours is None:
            raise ValueError(f"{self.root} is another tool's: nothing is written there")
        return Records(self.ours)

    def folder(self, repository: str) -> Path:
        """The folder of a repository.

        Raises:
            ResourceError: it cannot be the name of one.
        """
        return self.root / folder_name(repository)

    def blobs(self, repository: str) -> Path:
        """The folder of a repository's contents and half files."""
        return self.folder(repository) / "blobs"

    def blob(self, repository: str, blob: str) -> Path:
        return self.blobs(repository) / blob

    def incomplete(self, repository: str, blob: str) -> Path:
        return self.blobs(repository) / f"{blob}{INCOMPLETE}"

    def half(
        self,
        repository: str,
        file: StoredFile,
        on_read: OnRead = lambda _read: None,
        source: int = -1,
    ) -> contextlib.closing[HalfBlob]:
        """Open a blob to be completed, for a block. Only while the caller has the repository
        `alone`.

        Args:
            on_read: gets the bytes of each piece that was there already, as it is hashed.
            source: handle of a file with this content, whose blocks are shared where the file
                system can do that.

        Raises:
            OSError: it cannot be read or written.
        """
        return contextlib.closing(HalfBlob(self, repository, file, on_read, source))

    def snapshot(self, repository: str, commit: str) -> Path:
        return self.folder(repository) / "snapshots" / commit

    def repositories(self) -> list[str]:
        """The repositories that have a folder here, sorted."""
        names = [name for name in self._folders(self.root) if name.startswith(PREFIX)]
        return sorted(name for name in map(repository_of, names) if is_repository(name))

    def commits(self, repository: str) -> list[str]:
        """The commits that have a snapshot here, sorted."""
        return sorted(filter(is_commit, self._folders(self.folder(repository) / "snapshots")))

    def _folders(self, path: Path) -> list[str]:
        with contextlib.suppress(OSError):
            return [name for name, about in self.files.entries(path) if stat.S_ISDIR(about.st_mode)]
        return []

    def refs(self, repository: str) -> dict[str, str]:
        """The branches and tags that are known here, and their commits."""
        folder, found = self.folder(repository) / "refs", dict[str, str]()
        with contextlib.suppress(OSError):
            for entry in islice(self.files.walk(folder), MOST_FILES):
                with contextlib.suppress(OSError, UnicodeDecodeError, BadManifest):
                    name = check_revision(entry.path)
                    commit = self.files.read(folder / name, LARGEST_REF).decode("ascii").strip()
                    if is_commit(commit):
                        found[name] = commit
        return dict(sorted(found.items()))

    def commit_of(self, repository: str, revision: str) -> str | None:
        """The commit of a branch, tag or commit, as far as it is known here."""
        if is_commit(revision):
            return revision
        return self.refs(repository).get(revision)

    def missing(self, manifest: Manifest) -> MissingFiles:
        """Return what is not there; sizes are compared, contents are not read.

        Raises:
            OSError: a link or a file has the place of a folder.
        """
        here = self.contents(manifest.repository)
        links = self.links(manifest.repository, manifest.commit)
        blobs, foreign, begun = [], [], 0
        for file in manifest.blobs.values():
            about = here.get(file.blob)
            if about is not None and about.st_size == file.size:
                if self._is_trusted(about):
                    continue
                if file.algorithm:
                    foreign.append(file)
                    continue
            blobs.append(file)
            half = here.get(f"{file.blob}{INCOMPLETE}")
            begun += 0 if half is None else min(half.st_size, file.size)
        broken = tuple(f.path for f in manifest.files if links.get(f.path) != f.blob)
        return MissingFiles(tuple(blobs), tuple(foreign), begun, broken)

    def contents(self, repository: str) -> dict[str, os.stat_result]:
        """The regular files below `blobs/`, by name.

        Raises:
            OSError: `blobs` is not a folder.
        """
        with contextlib.suppress(FileNotFoundError):
            entries = self.files.entries(self.blobs(repository))
            return {name: about for name, about in entries if stat.S_ISREG(about.st_mode)}
        return {}

    def links(self, repository: str, commit: str) -> dict[str, str | None]:
        """What is in a snapshot: path to the blob that it leads to, there or not; None for what is
        not a link to a blob of the repository.

        Raises:
            OSError: the snapshot is not a folder.
        """
        snapshot, blobs = self.snapshot(repository, commit), self.blobs(repository)
        found: dict[str, str | None] = {}
        with contextlib.suppress(FileNotFoundError):
            for entry in islice(self.files.walk(snapshot), MOST_FILES + 1):
                target = (snapshot / entry.path).parent / entry.target
                folder, _, blob = os.path.normpath(target).rpartition("/")
                is_blob = bool(entry.target) and folder == str(blobs)
                found[entry.path] = blob if is_blob else None
        return found

    def open(self, repository: str, file: StoredFile) -> int:
        """Open a blob that is whole; return its handle.

        Raises:
            OSError: it is not there, not of its size, or can be written by someone else.
        """
        path = self.blob(repository, file.blob)
        handle = self.files.open(path)
        about = os.fstat(handle)
        if about.st_size == file.size and self._is_trusted(about):
            return handle
        os.close(handle)
        if about.st_size != file.size:
            raise OSError(0, "its size is not the one of the model's revision", str(path))
        raise NotFollowed(path, f"can be written by others (uid {about.st_uid}, or a second name)")

    def _is_trusted(self, about: os.stat_result) -> bool:
        """Return whether a blob is used as it is; of another cache copies are taken only, and
        `Folder.owners` says whose."""
        return is_own(about) if self.files.owners is None else about.st_uid in self.files.owners

    def publish(self, manifest: Manifest, revision: str = "") -> None:
        """Make the links of a revision whose blobs are all there, and at last its ref.

        Args:
            revision: a branch or tag that has this commit.

        Raises:
            ResourceError: a blob is not there, or it cannot be the name of a branch.
            OSError: a link has the place of a folder.
        """
        repository, commit = manifest.repository, manifest.commit
        missing = self.missing(manifest)
        if missing.paths:
            raise ResourceError(f"{repository}: {missing.paths[0]} is not complete yet")
        snapshot = self.snapshot(repository, commit)
        self.files.make(snapshot)
        folders = {snapshot}
        for file in manifest.files:
            link = snapshot / file.path
            if file.path in missing.links:
                self.files.make(link.parent)
                folders.add(link.parent)
                target = os.path.relpath(self.blob(repository, file.blob), link.parent)
                self.files.link(link, target)
        for folder in sorted(folders):
            self.files.sync(folder)
        if revision and not is_commit(revision):
            ref = self.folder(repository) / "refs" / check_revision(revision)
            self.files.make(ref.parent)
            self.files.write(ref, commit.encode())

    def known(self, repository: str, commit: str) -> Manifest:
        """Return the manifest that a pull or copy has kept of a revision, else that of a complete
        snapshot; raises as `found`."""
        kept = self.records.manifest(repository, commit) if self.ours else None
        return kept or self.found(repository, commit)

    def held(
        self, repository: str, commit: str
    ) -> tuple[Manifest | None, MissingFiles | None, str]:
        """Return what a revision consists of and what of it is not there, as names and sizes show;
        or neither, and why it cannot be used."""
        try:
            manifest = self.known(repository, commit)
            return manifest, self.missing(manifest), ""
        except ResourceError as error:
            return None, None, error.message
        except OSError as error:
            return None, None, explain(error)

    def found(self, repository: str, commit: str) -> Manifest:
        """Return the manifest of a snapshot that is here, whoever fetched it, from its links.

        Raises:
            ResourceError: there is none, it is not complete, or its index cannot be read.
            OSError: a link or a file has the place of a folder.
        """
        links, here = self.links(repository, commit), self.contents(repository)
        if not links:
            raise ResourceError(f"{repository}: revision {commit[:12]} is not on this node")
        snapshot = self.snapshot(repository, commit)
        files = [self._linked(snapshot / path, path, blob, here) for path, blob in links.items()]
        manifest = Manifest(repository, commit, tuple(sorted(files)))
        paths = {file.path for file in files}
        if not any(path.endswith(_WEIGHTS) for path in paths):
            raise ResourceError(
                f"{repository}: {len(paths)} files of revision {commit[:12]} are there, and no "
                "weights",
                PULL,
            )
        shards = _numbered(paths)
        for file in manifest.files:
            shards |= self._indexed(repository, file) if file.path in INDEXES else set()
        lost = sorted(shards - paths)
        if lost:
            raise ResourceError(
                f"{repository}: {len(lost)} of {len(shards)} weight files are not there "
                f"({lost[0][:100]})",
                PULL,
            )
        return manifest

    def _linked(
        self, path: Path, name: str, blob: str | None, here: dict[str, os.stat_result]
    ) -> StoredFile:
        """Return the file of a link that leads to a blob. Raises ResourceError where it is none."""
        if blob is None:
            raise ResourceError(
                f"{path}: the link of {name} does not lead to its repository's blobs"
            )
        if not algorithm_of(blob):
            raise ResourceError(
                f"{path}: {blob[:80]!r} is not the name of a blob: expected its content's hash",
                "spark-cluster models pull",
            )
        about = here.get(blob)
        if about is None:
            raise ResourceError(
                f"{path}: the link of {name} is broken", "spark-cluster models repair"
            )
        if not self._is_trusted(about):
            raise ResourceError(
                f"{path}: others can write its content (uid {about.st_uid}, "
                f"{about.st_nlink} names)",
                "`spark-cluster models pull` makes a copy of root's own of what is right",
            )
        return StoredFile(name, about.st_size, blob, algorithm_of(blob))

    def _indexed(self, repository: str, file: StoredFile) -> set[str]:
        """Return the files that an index of the weights names. Raises BadManifest."""
        text = self.files.read(self.blob(repository, file.blob), LARGEST_INDEX)
        try:
            return {str(shard) for shard in json.loads(text)["weight_map"].values()}
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise BadManifest(
                f"{repository}: {file.path} is damaged", "spark-cluster models repair"
            ) from error


def _numbered(paths: Collection[str]) -> set[str]:
    """Return the weight files that the numbers in the names of some (00001-of-00004) ask for."""
    wanted = set()
    for found in filter(None, map(_SHARD.fullmatch, paths)):
        stem, count, end = found["stem"], int(found["count"]), found["end"]
        if count <= len(paths) * 1000:
            numbers = range(1, min(count, 10_000) + 1)
            wanted |= {f"{stem}-{number:05}-of-{count:05}{end}" for number in numbers}
    return wanted


class HalfBlob:
    """A blob on its way: what an earlier run has left is hashed, and what comes is added to it.

    It is root's alone until its hash has been checked: what it is copied from may be any file.

    Attributes:
        size: bytes that are there.
    """

    def __init__(
        self, cache: HubCache, repository: str, file: StoredFile, on_read: OnRead, source: int
    ) -> None:
        self._files, self._file, self._hasher = cache.files, file, file.hasher()
        self._path = cache.incomplete(repository, file.blob)
        self._blob = cache.blob(repository, file.blob)
        self.size = 0
        self._handle = self._files.resume(self._path)
        try:
            self._begin(on_read, source)
        except BaseException:
            self.close()
            raise

    def _begin(self, on_read: OnRead, source: int) -> None:
        os.fchmod(self._handle, 0o600)
        if source >= 0 and not os.fstat(self._handle).st_size:
            clone(source, self._handle)
        if os.fstat(self._handle).st_size > self._file.size:
            os.ftruncate(self._handle, 0)
        for piece in pieces(self._handle, self._file.size):
            self._hasher.update(piece)
            self.size += len(piece)
            on_read(len(piece))
        os.lseek(self._handle, self.size, os.SEEK_SET)

    def add(self, piece: bytes | memoryview) -> None:
        """Write bytes that have come. Raises OSError."""
        write_all(self._handle, piece)
        self._hasher.update(piece)
        self.size += len(piece)

    def settle(self) -> bool:
        """Give the blob its name if it is complete and what its hash says; else remove it, and
        return False. Raises OSError."""
        if self.size != self._file.size or not self._file.fits(self._hasher):
            self._files.remove(self._path)
            return False
        os.fchmod(self._handle, 0o644)
        self._files.settle(self._handle, self._path, self._blob)
        return True

    def close(self) -> None:
        os.close(self._handle)


@contextlib.contextmanager
def alone(
    cache: HubCache,
    repository: str,
    limit_s: float = WAIT_S,
    tell: Callable[[str], object] = lambda _text: None,
) -> Iterator[None]:
    """Be the only one of ours that writes into a repository of the cache.

    Args:
        tell: gets a line when another one is waited for.

    Raises:
        ResourceError: another one has not ended in time.
    """
    with closing_handle(durable.open_lock(_lock_of(cache, repository))) as handle:
        if not durable.take_lock(handle, min(TELL_S, limit_s)):
            tell(f"{repository}: waiting for another pull or copy of it on this node")
            if not durable.take_lock(handle, limit_s - TELL_S):
                raise ResourceError(
                    f"{repository}: another copy or download has not ended in {limit_s:.0f} s",
                    "`systemctl list-units 'spark-cluster-*'` on the node shows it",
                )
        yield


def is_locked(cache: HubCache, repository: str) -> bool:
    """Return whether somebody writes into a repository of the cache (`alone`)."""
    with closing_handle(durable.open_lock(_lock_of(cache, repository))) as handle:
        return durable.is_lock_held(handle)


def _lock_of(cache: HubCache, repository: str) -> Path:
    """The lock of a repository, in a folder that only root can open: what containers and users can
    open, they can lock."""
    return cache.records.folder / LOCKS / f"{folder_name(repository)}.lock"


# Our own notes on models, next to the hub cache: manifests and pins.
#
# They are in a folder of root's; what cannot be read there is said before anything is removed.

PINS = "pins.json"

_NAME = re.compile(r"(?P<repository>[^@]+)(?:@(?P<commit>[0-9a-f]{40}))?")


class Records:
    """The notes on one node.

    Args:
        folder: paths.MODELS, below the root of the node.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def manifest(self, repository: str, commit: str) -> Manifest | None:
        """The manifest that a pull or copy has kept; None without one, or if it is damaged."""
        try:
            found = Manifest.from_document(durable.read_object(self._manifest(repository, commit)))
        except BadManifest:
            return None
        return found if (found.repository, found.commit) == (repository, commit) else None

    def keep(self, manifest: Manifest) -> None:
        """Keep a manifest, durably."""
        path = self._manifest(manifest.repository, manifest.commit)
        durable.make_folder(self.folder)
        durable.put_file(path, json.dumps(manifest.document()).encode())

    def forget(self, repository: str, commit: str) -> None:
        """Forget the manifest of a revision that was removed."""
        path = self._manifest(repository, commit)
        path.unlink(missing_ok=True)
        if path.parent.is_dir():
            durable.sync_folder(path.parent)

    def pins(self) -> frozenset[str]:
        """The pinned ones: ORG/NAME for all revisions, ORG/NAME@COMMIT for one.

        Raises:
            ResourceError: they cannot be read, so that nothing may be removed.
        """
        return frozenset(self._pins())

    def pin(self, name: str, now: float, *, pinned: bool = True) -> bool:
        """Pin ORG/NAME or ORG/NAME@COMMIT, or unpin it; False if it was so already."""
        found = _NAME.fullmatch(name)
        if found is None or not is_repository(found["repository"]):
            raise ResourceError(f"{name[:150]!r} is not a model: ORG/NAME or ORG/NAME@COMMIT")
        durable.make_folder(self.folder)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        with closing_handle(os.open(self.folder / "lock", flags, 0o600)) as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)  # held for the time of one write
            pins = self._pins()
            if (name in pins) == pinned:
                return False
            kept = {one: since for one, since in pins.items() if one != name}
            kept |= {name: now} if pinned else {}
            durable.write_file(self.folder / PINS, json.dumps(kept, sort_keys=True).encode())
        return True

    def _manifest(self, repository: str, commit: str) -> Path:
        return manifest_path(self.folder, repository, commit)

    def _pins(self) -> dict[str, Any]:
        path = self.folder / PINS
        try:
            found = decoded(path.read_bytes())
        except FileNotFoundError:
            return {}
        if not isinstance(found, dict):
            raise ResourceError(
                f"{path} cannot be read: it is damaged, or was not written by spark-cluster",
                f"look at it; without it (rm {path}) nothing is pinned",
            )
        return found
