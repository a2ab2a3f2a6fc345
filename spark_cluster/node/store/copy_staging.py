"""Where the files of a copy lie until they are proved, and how they get their place."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from spark_cluster.node.beneath import Folder
from spark_cluster.node.open_files import clone, pieces, write_whole
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.manifest import StoredFile
from spark_cluster.node.store.plain_folder import PlainFolder

PIECE = 1 << 20


class Staging:
    """Where files lie until they are proved: nobody but root can put a link in rsync's way there.

    That of a hub cache is root's own, so large files wait next to their place. A plain folder may
    be a container's or a user's; what goes there, and small files, wait below our own notes.
    """

    def __init__(self, cache: HubCache, repository: str) -> None:
        self._cache, self._repository = cache, repository
        if self._cache.ours is None:
            raise ValueError(f"{self._cache.root} is another tool's: nothing is written there")
        self._ours = Folder(self._cache.ours)
        self._own = f"incoming/{repository.replace('/', '--')}"
        if isinstance(self._cache, PlainFolder):
            self.files, self.place = self._ours, Path(self._own)
        else:
            self.files, self.place = self._cache.files, self._cache.blobs(self._repository)
        self.files.make(self.place, 0o755 if self.files is self._cache.files else 0o700)

    def half(self, file: StoredFile) -> Path:
        """The place of a file that is on its way, of which a later copy goes on."""
        return self.place / f"{file.blob}.incomplete"

    def begun(self, file: StoredFile) -> int:
        """Bytes that an earlier copy has left of a file."""
        with contextlib.suppress(OSError):
            return min(self.files.stat(self.half(file)).st_size, file.size)
        return 0

    @contextlib.contextmanager
    def together(self, number: int) -> Iterator[tuple[Folder, Path]]:
        """Yield a new folder for small files; it is removed with what is left in it."""
        path = Path(self._own) / f"small-{number}"
        self._ours.remove(path)
        self._ours.make(path, 0o700)
        try:
            yield self._ours, path
        finally:
            self._ours.remove(path)

    def settle(self, files: Folder, staged: Path, handle: int, file: StoredFile) -> None:
        """Give a proved file its name; by a copy where that is on another disk."""
        os.fchmod(handle, 0o644)
        os.fsync(handle)
        target = self._cache.blob(self._repository, file.blob)
        with files.at(staged.parent) as folder:
            try:
                self._cache.files.take(folder, staged.name, target)
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
                self._copied(handle, file, target)
                files.remove(staged)
        self._cache.files.sync(target.parent)

    def _copied(self, handle: int, file: StoredFile, target: Path) -> None:
        staged = target.with_name(f".{target.name}.spark-cluster-new")
        self._cache.files.remove(staged)
        new = self._cache.files.create(staged)
        try:
            if not clone(handle, new):
                for piece in pieces(handle, file.size, PIECE):
                    write_whole(new, piece)
            self._cache.files.settle(new, staged, target)
        finally:
            os.close(new)

    def clear(self) -> None:
        """Remove what is not needed any more."""
        self._ours.remove(self._own)
