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
import shutil
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from spark_cluster.node.durable import make_folder, sync, sync_folder, write_file
from spark_cluster.node.store.layout import (
    INCOMPLETE,
    PREFIX,
    check_revision,
    folder_name,
    repository_of,
)
from spark_cluster.node.store.manifest import (
    BadManifest,
    Manifest,
    StoredFile,
    algorithm_of,
    is_commit,
    is_repository,
)
from spark_cluster.node.values import ResourceError

INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
LARGEST_INDEX = 64 << 20
"""Bytes; that of the largest public models has about 10 MB."""

WAIT_S = 6 * 3600.0
"""Seconds that one writer waits for another one of the same model."""


@dataclass(frozen=True)
class Lacking:
    """What of a manifest is not there.

    Attributes:
        blobs: those that are not whole, in the order of the files.
        begun: bytes that half files of them have.
        links: paths whose link is missing or leads elsewhere.
    """

    blobs: tuple[StoredFile, ...]
    begun: int
    links: tuple[str, ...]

    @property
    def size(self) -> int:
        """Bytes to fetch."""
        return max(0, sum(file.size for file in self.blobs) - self.begun)

    @property
    def nothing(self) -> bool:
        """True if the revision is whole."""
        return not self.blobs and not self.links


class HubCache:
    """A hub cache on this machine.

    Args:
        root: its folder, which `models--...` lie in.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def folder(self, repository: str) -> Path:
        """The folder of a repository.

        Raises:
            ResourceError: it cannot be the name of one.
        """
        return self.root / folder_name(repository)

    def blob(self, repository: str, blob: str) -> Path:
        return self.folder(repository) / "blobs" / blob

    def incomplete(self, repository: str, blob: str) -> Path:
        return self.folder(repository) / "blobs" / f"{blob}{INCOMPLETE}"

    def snapshot(self, repository: str, commit: str) -> Path:
        return self.folder(repository) / "snapshots" / commit

    def lock_folder(self, repository: str) -> Path:
        """The folder of the lock of a repository: where the hub's library has its own."""
        return self.root / ".locks" / self.folder(repository).name

    def free(self) -> int:
        """Bytes that can still be written where the cache is, or will be."""
        there = next(path for path in (self.root, *self.root.parents) if path.is_dir())
        return shutil.disk_usage(there).free

    def repositories(self) -> list[str]:
        """The repositories that have a folder here, sorted."""
        with contextlib.suppress(OSError):
            names = [p.name for p in self.root.iterdir() if p.name.startswith(PREFIX)]
            found = [repository_of(name) for name in names]
            return sorted(name for name in found if is_repository(name))
        return []

    def commits(self, repository: str) -> list[str]:
        """The commits that have a snapshot here, sorted."""
        with contextlib.suppress(OSError):
            folder = self.folder(repository) / "snapshots"
            return sorted(path.name for path in folder.iterdir() if is_commit(path.name))
        return []

    def refs(self, repository: str) -> dict[str, str]:
        """The branches and tags that are known here, and their commits."""
        folder, found = self.folder(repository) / "refs", {}
        for path in sorted(folder.rglob("*")):
            with contextlib.suppress(OSError, UnicodeDecodeError):
                commit = path.read_text(encoding="ascii")[:100].strip()
                if is_commit(commit):
                    found[path.relative_to(folder).as_posix()] = commit
        return found

    def commit_of(self, repository: str, revision: str) -> str | None:
        """The commit of a branch, tag or commit, as far as it is known here."""
        if is_commit(revision):
            return revision
        return self.refs(repository).get(revision)

    def lacking(self, manifest: Manifest) -> Lacking:
        """Return what is not there; sizes are compared, contents are not read."""
        here = dict(self._blobs(manifest.repository))
        blobs = tuple(f for f in manifest.blobs.values() if here.get(f.blob) != f.size)
        halves = [min(here.get(f"{f.blob}{INCOMPLETE}", 0), f.size) for f in blobs]
        links = tuple(f.path for f in manifest.files if self._target(manifest, f) != f.blob)
        return Lacking(blobs, sum(halves), links)

    def publish(self, manifest: Manifest, revision: str = "") -> None:
        """Make the links of a revision whose blobs are all there, and at last its ref.

        Args:
            revision: a branch or tag that has this commit.

        Raises:
            ResourceError: a blob is not there, or it cannot be the name of a branch.
        """
        repository, commit = manifest.repository, manifest.commit
        lacking = self.lacking(manifest)
        if lacking.blobs:
            raise ResourceError(f"{repository}: {lacking.blobs[0].path} is not whole yet")
        snapshot = self.snapshot(repository, commit)
        make_folder(snapshot, 0o755)
        folders = {snapshot}
        for file in manifest.files:
            link = snapshot / file.path
            make_folder(link.parent, 0o755)
            folders.add(link.parent)
            if file.path in lacking.links:
                _replace_link(link, os.path.relpath(self.blob(repository, file.blob), link.parent))
        for folder in sorted(folders):
            sync_folder(folder)
        if revision and not is_commit(revision):
            self._write_ref(repository, revision, commit)

    def _write_ref(self, repository: str, revision: str, commit: str) -> None:
        path = self.folder(repository) / "refs" / check_revision(revision)
        make_folder(path.parent, 0o755)
        write_file(path, commit.encode(), 0o644)

    def found(self, repository: str, commit: str) -> Manifest:
        """Return the manifest of a snapshot that is here, whoever fetched it.

        Raises:
            ResourceError: there is none, it is not whole, or its index cannot be read.
        """
        snapshot, files = self.snapshot(repository, commit), []
        for path in _below(snapshot):
            name = path.relative_to(snapshot).as_posix()
            files.append(_linked(path, name, self.folder(repository) / "blobs"))
        if not files:
            raise ResourceError(f"{repository}: revision {commit[:12]} is not on this node")
        listed = [vars(file) for file in files]
        manifest = Manifest.from_document(
            {"repository": repository, "commit": commit, "files": listed}
        )
        for index in INDEXES:
            _must_have_shards(manifest, snapshot / index)
        return manifest

    def _blobs(self, repository: str) -> Iterator[tuple[str, int]]:
        """The names and sizes of the regular files below `blobs/`."""
        with (
            contextlib.suppress(FileNotFoundError),
            os.scandir(self.folder(repository) / "blobs") as entries,
        ):
            for entry in entries:
                about = entry.stat(follow_symlinks=False)
                if stat.S_ISREG(about.st_mode):
                    yield entry.name, about.st_size

    def _target(self, manifest: Manifest, file: StoredFile) -> str | None:
        """The blob that a file's link leads to; None when it is no link into `blobs/`."""
        link = self.snapshot(manifest.repository, manifest.commit) / file.path
        try:
            target = link.readlink()
        except OSError:
            return None
        wanted = self.blob(manifest.repository, file.blob)
        if os.path.normpath(link.parent / target) != str(wanted):
            return None
        return file.blob


def _replace_link(link: Path, target: str) -> None:
    staged = link.with_name(f".{link.name}.new")
    staged.unlink(missing_ok=True)
    staged.symlink_to(target)
    staged.replace(link)


def _below(folder: Path) -> Iterator[Path]:
    """All that is no folder below a folder, without following links to folders."""
    for place, folders, names in os.walk(folder):
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        yield from (Path(place) / name for name in sorted([*names, *links]))


def _linked(path: Path, name: str, blobs: Path) -> StoredFile:
    """The file of a link that leads to a blob.

    Raises:
        ResourceError: it is no link, is broken, or leads elsewhere.
    """
    try:
        target = Path(os.path.normpath(path.parent / path.readlink()))
        about = target.lstat()
    except OSError as error:
        raise ResourceError(
            f"{path}: the link of {name} is broken: {error.strerror}", "spark-cluster models repair"
        ) from error
    if target.parent != blobs or not stat.S_ISREG(about.st_mode):
        raise ResourceError(f"{path}: the link of {name} does not lead to its repository's blobs")
    return StoredFile(name, about.st_size, target.name, algorithm_of(target.name))


def _must_have_shards(manifest: Manifest, index: Path) -> None:
    """Raise ResourceError when a file that the index of the weights names is not there."""
    if index.name not in {file.path for file in manifest.files}:
        return
    with index.open("rb") as opened:
        text = opened.read(LARGEST_INDEX)
    try:
        shards = set(json.loads(text)["weight_map"].values())
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise BadManifest(f"{index} is damaged", "spark-cluster models repair") from error
    lost = sorted(str(shard) for shard in shards - {file.path for file in manifest.files})
    if lost:
        raise ResourceError(
            f"{manifest.repository}: {len(lost)} of {len(shards)} weight files are not there "
            f"({lost[0][:100]})",
            "spark-cluster models pull goes on with it",
        )


def make_durable(path: Path, blob: Path) -> None:
    """Give a whole file its name as a blob: its content first, then the name."""
    sync(path)
    path.replace(blob)
    sync_folder(blob.parent)


@contextlib.contextmanager
def alone(cache: HubCache, repository: str, limit_s: float = WAIT_S) -> Iterator[None]:
    """Be the only one of ours that writes into a repository of the cache.

    Raises:
        ResourceError: another one has not ended in time.
    """
    path = _lock_of(cache, repository)
    make_folder(path.parent, 0o755)
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        until = time.monotonic() + limit_s
        while not _locked(handle):
            if time.monotonic() > until:
                raise ResourceError(
                    f"{repository}: another copy or download has not ended in {limit_s:.0f} s",
                    "`systemctl list-units 'spark-cluster-*'` on the node shows it",
                )
            time.sleep(0.2)
        yield
    finally:
        os.close(handle)


def _locked(handle: int) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def is_locked(cache: HubCache, repository: str) -> bool:
    """Return whether somebody writes into a repository of the cache (`alone`)."""
    try:
        handle = os.open(_lock_of(cache, repository), os.O_RDWR | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        return not _locked(handle)
    finally:
        os.close(handle)


def _lock_of(cache: HubCache, repository: str) -> Path:
    return cache.lock_folder(repository) / "spark-cluster.lock"
