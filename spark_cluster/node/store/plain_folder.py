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
from typing import Any

from spark_cluster.node import paths
from spark_cluster.node.beneath import NotFollowed
from spark_cluster.node.durable import make_folder, write_file
from spark_cluster.node.faults import explain
from spark_cluster.node.open_files import clone, pieces, write_whole
from spark_cluster.node.store.hub_cache import HubCache, Lacking
from spark_cluster.node.store.manifest import MOST_FILES, SHA256, Manifest, StoredFile, check_path
from spark_cluster.node.values import ResourceError

OURS = paths.FOLDERS
"""Folder, root-only, of the hashes of files in plain folders."""
INCOMING = ".spark-cluster-incoming"
"""Below the folder: files that are not whole yet."""
COMPLETE = ".complete"
"""Below the folder: what it is, once all of it is there."""
STAGED = ".spark-cluster-new"
PIECE = 1 << 20
LARGEST_RECORD = 16 << 20
"""Bytes; 20,000 files of long names take less."""

Known = dict[str, tuple[int, int, str]]
"""By path: bytes, time of change in ns, SHA-256."""


class PlainFolder(HubCache):
    """A folder of plain files on this machine.

    Args:
        root: the folder; it may be any user's.
        ours: where the hashes are kept.
        read: a file whose hash is not known is read; otherwise it counts as lacking.
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
        known, files = self._known(), list[StoredFile]()
        for path, about in self._files():
            digest = self._digest(path, about, known, progress)
            known[path] = (about.st_size, about.st_mtime_ns, digest)
            changed = about.st_mtime_ns if self._exact else 0
            files.append(StoredFile(path, about.st_size, digest, SHA256, changed))
        self._keep({file.path: known[file.path] for file in files})
        listed = json.dumps([[file.path, file.blob, file.changed] for file in files])
        commit = hashlib.sha256(listed.encode()).hexdigest()[:40]
        return self.adopt(
            Manifest.from_document(
                {
                    "repository": self.repository,
                    "commit": commit,
                    "files": [vars(file) for file in files],
                }
            )
        )

    def adopt(self, manifest: Manifest) -> Manifest:
        """Take the names of a manifest's files; return it."""
        self._paths = {file.blob: file.path for file in reversed(manifest.files)}
        self._exact = any(file.changed for file in manifest.files)
        return manifest

    def lacking(self, manifest: Manifest) -> Lacking:
        """Return the files that are not there or have other content."""
        self.adopt(manifest)
        known = self._known()
        here = {file.path: self._is_here(file, known) for file in manifest.files}
        if self._read:
            self._keep(known)
        blobs = [f for f in manifest.blobs.values() if not here[self._paths[f.blob]]]
        if self._read:
            for file in blobs:
                self.files.make((self.root / self._paths[file.blob]).parent)
        begun = [self._begun(manifest, file) for file in blobs]
        links = tuple(
            file.path for file in manifest.files if not (here[file.path] and self._in_time(file))
        )
        return Lacking(tuple(blobs), (), sum(begun), links)

    def publish(self, manifest: Manifest, revision: str = "") -> None:
        """Give equal files their content, and take note of all hashes.

        Args:
            revision: what `.complete` is to say, NAME@REVISION as the role `models` has it.

        Raises:
            ResourceError: a file is not there.
        """
        lacking = self.lacking(manifest)
        if lacking.blobs:
            raise ResourceError(f"{self.root}: {lacking.blobs[0].path} is not whole yet")
        for file in (file for file in manifest.files if file.path in lacking.links):
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
        if revision:
            self.files.write(COMPLETE, f"{revision}\n".encode())

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
                    write_whole(new, piece)
            self.files.settle(new, staged, target)

    def _begun(self, manifest: Manifest, file: StoredFile) -> int:
        with contextlib.suppress(OSError):
            half = self.incomplete(manifest.repository, file.blob)
            return min(self.files.stat(half).st_size, file.size)
        return 0

    def _is_here(self, file: StoredFile, known: Known) -> bool:
        try:
            about = self.files.stat(file.path)
        except OSError:
            return False
        if not stat.S_ISREG(about.st_mode) or about.st_size != file.size:
            return False
        if known.get(file.path, (0, 0, ""))[:2] != (about.st_size, about.st_mtime_ns):
            if not self._read:
                return False
            digest = self._digest(file.path, about, known, lambda _read: None)
            known[file.path] = (about.st_size, about.st_mtime_ns, digest)
        return known[file.path][2] == file.blob

    def _in_time(self, file: StoredFile) -> bool:
        return not file.changed or self.files.stat(file.path).st_mtime_ns == file.changed

    def _digest(
        self, path: str, about: os.stat_result, known: Known, progress: Callable[[int], None]
    ) -> str:
        size, changed, digest = known.get(path, (-1, -1, ""))
        if (size, changed) == (about.st_size, about.st_mtime_ns):
            return digest
        found, handle = hashlib.sha256(), self._opened(path)
        try:
            for piece in pieces(handle, about.st_size, PIECE):
                found.update(piece)
                progress(len(piece))
        finally:
            os.close(handle)
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

    def _known(self) -> Known:
        try:
            with self._record.open("rb") as opened:
                found: Any = json.loads(opened.read(LARGEST_RECORD))
            return {str(p): (int(s), int(t), str(d)) for p, (s, t, d) in found.items()}
        except (OSError, ValueError, TypeError, AttributeError, RecursionError):
            return {}  # all is read again

    def _keep(self, known: Known) -> None:
        make_folder(self._record.parent, 0o700)
        write_file(self._record, json.dumps(known).encode(), 0o600)
