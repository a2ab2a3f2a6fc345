"""A plain folder of files in the role of a hub cache, so that `models copy` can move it.

Its manifest is computed from the files: SHA-256 of each, kept with size and time of change, so that
what has not changed since is not read again. Names that begin with a dot are left out: they are
notes of tools, ours included; an exact copy has them too, and the times of its files.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

from spark_cluster.node import paths
from spark_cluster.node.beneath import NotFollowed
from spark_cluster.node.durable import make_folder, read_object, write_file
from spark_cluster.node.faults import explain
from spark_cluster.node.open_files import clone, pieces, write_all
from spark_cluster.node.store.hub_cache import HubCache, MissingFiles
from spark_cluster.node.store.manifest import MOST_FILES, SHA256, Manifest, StoredFile, check_path
from spark_cluster.node.values import ResourceError

OURS = paths.FOLDERS
"""Folder, root-only, of the hashes of files in plain folders."""
INCOMING = ".spark-cluster-incoming"
"""Below the folder: files that are not whole yet."""
COMPLETE = ".complete"
"""Below the folder: the note of a download, which is of this node."""
STAGED = ".spark-cluster-new"
PIECE = 1 << 20


class PlainFolder(HubCache):
    """A folder of plain files on this machine.

    Args:
        root: the folder; it may be any user's.
        ours: where the hashes are kept.
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
            raise ResourceError(f"{self.root}: {missing.blobs[0].path} is not whole yet")
        for file in (file for file in manifest.files if file.path in missing.links):
            path, source = self.root / file.path, self.blob(manifest.repository, file.blob)
            self.files.make(path.parent)
            if path != source:
                self._duplicate(file, source, path)
            if file.changed:
                handle = self.files.open(path)
                try:
                    os.utime(handle, ns=(file.changed, file.changed))
                finally:
                    os.close(handle)
        self.files.remove(INCOMING)
        self.manifest()

    def _duplicate(self, file: StoredFile, source: Path, target: Path) -> None:
        staged = target.with_name(f".{target.name}{STAGED}")
        self.files.remove(staged)
        with contextlib.ExitStack() as stack:
            opened = self._opened(source)
            stack.callback(os.close, opened)
            new = self.files.create(staged)
            stack.callback(os.close, new)
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
        found, handle = hashlib.sha256(), self._opened(path)
        try:
            for piece in pieces(handle, about.st_size, PIECE):
                found.update(piece)
                progress(len(piece))
        finally:
            os.close(handle)
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
        make_folder(self._record.parent, 0o700)
        write_file(self._record, json.dumps(self._hashes).encode(), 0o600)


def _read(record: Path) -> dict[str, tuple[int, int, str]]:
    """Return what is noted of files, by path: bytes, time of change in ns, SHA-256."""
    with contextlib.suppress(TypeError, ValueError):
        found = read_object(record).items()
        return {path: (int(size), int(time), str(digest)) for path, (size, time, digest) in found}
    return {}  # all is read again
