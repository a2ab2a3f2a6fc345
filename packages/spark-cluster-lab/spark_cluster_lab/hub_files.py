"""The repositories of the lab's hub: folders, their revisions, and hashes as the real hub has."""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass, field
from pathlib import Path

MAIN = "main"
LFS_ENDINGS = (".safetensors", ".bin", ".gguf", ".pt", ".pth", ".onnx", ".h5", ".msgpack")
LFS_SIZE = 10 << 20
"""Bytes above which the real hub takes a file by LFS only."""
LARGEST_HASHED = 1 << 30
"""Bytes; a larger file, which tests have without content, is named by its size only."""
CHUNK = 1 << 20


@dataclass(frozen=True)
class HubFile:
    """A file of a revision.

    Attributes:
        lfs: it is sent from the store of large files, after a redirect.
        hash: SHA-256 of an LFS file, else git's SHA-1, hex; the ETag and the blob's name.
    """

    path: Path
    size: int
    lfs: bool
    hash: str


@dataclass
class Repositories:
    """The repositories below a folder, `ROOT/ORGANISATION/NAME/files`, and other revisions of them.

    Attributes:
        branches: repository and branch or tag to the folder that it stands for; `main` is the
            repository's own folder unless it is here. Changing one is how a branch moves.
        history: repository to folders of earlier revisions, which their commits still name.
    """

    root: Path
    branches: dict[tuple[str, str], Path] = field(default_factory=dict)
    history: dict[str, list[Path]] = field(default_factory=dict)

    def move(self, repository: str, branch: str, folder: Path) -> None:
        """Have a branch stand for another folder; the commit before it remains."""
        before = self._folder(repository, branch)
        if before is not None:
            self.history.setdefault(repository, []).append(before)
        self.branches[repository, branch] = folder

    def folder(self, repository: str, revision: str = MAIN) -> Path | None:
        """The folder of a branch, tag or commit; None when there is none."""
        if any(part in ("", ".", "..") for part in repository.split("/")):
            return None
        found = self._folder(repository, revision)
        if found is not None:
            return found
        others = [path for (name, _), path in self.branches.items() if name == repository]
        known = [self.root / repository, *others, *self.history.get(repository, [])]
        return next((f for f in known if f.is_dir() and commit_of(repository, f) == revision), None)

    def _folder(self, repository: str, branch: str) -> Path | None:
        found = self.branches.get((repository, branch))
        if found is None and branch == MAIN:
            found = self.root / repository
        return found if found is not None and found.is_dir() else None

    def files(self, repository: str, revision: str = MAIN) -> dict[str, Path]:
        """The files of a revision by their names; empty when there is none."""
        folder = self.folder(repository, revision)
        return {} if folder is None else files_of(folder)

    def commit(self, repository: str, revision: str = MAIN) -> str:
        """The commit of a revision, which follows from its files; "" when there is none."""
        folder = self.folder(repository, revision)
        return "" if folder is None else commit_of(repository, folder)


def files_of(folder: Path) -> dict[str, Path]:
    """Return the files below a folder by their names."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path for path in paths}


def commit_of(repository: str, folder: Path) -> str:
    """Return the commit that a folder's content has."""
    digest = hashlib.sha1(repository.encode(), usedforsecurity=False)
    for name, path in files_of(folder).items():
        digest.update(f"{name} {hub_file(path).hash}\n".encode())
    return digest.hexdigest()


def hub_file(path: Path) -> HubFile:
    """Return what the hub says of a file."""
    status = path.stat()
    return _hub_file(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=4096)
def _hub_file(path: Path, size: int, _changed: int) -> HubFile:
    lfs = size > LFS_SIZE or path.name.endswith(LFS_ENDINGS)
    git = b"blob %d\0" % size
    digest = hashlib.sha256() if lfs else hashlib.sha1(git, usedforsecurity=False)
    if size > LARGEST_HASHED:
        digest.update(str(size).encode())
        return HubFile(path, size, lfs, digest.hexdigest())
    with path.open("rb") as file:
        while chunk := file.read(CHUNK):
            digest.update(chunk)
    return HubFile(path, size, lfs, digest.hexdigest())
