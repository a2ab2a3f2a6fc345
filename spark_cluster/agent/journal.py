"""What a run changed on this node, kept so that it can be shown and put back.

`FOLDER/RUN/run.json` says who ran what, `changes.jsonl` holds an entry a change, and `before/` the
contents that were replaced, by digest. Only root may read it, since contents can be private. The
content of a file that was declared as a Secret is not kept at all, so such a file cannot be put
back: what is worth rotating must not lie around in a journal.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

Shape = dict[str, Any]
"""What is at a path: `kind` (file, link, directory, special), `mode`, `uid`, `gid`, and `sha256` of
a file or `link` of a link. None stands for nothing."""

KEPT = 200
"""Runs of which the journal is kept."""

TREE_LIMIT = 64 * 1024 * 1024
"""Bytes of a removed folder that are kept; of a larger one nothing is."""


class Journal:
    """One run's changes on this node.

    An entry is written and synced before the change it tells of, so that a power cut leaves
    either an entry too many or none, never an unrecorded change.

    Args:
        folder: the node's journal folder.
        run: id of the run.
        owner: who runs what, as the holder of the node's lock told it.
    """

    def __init__(self, folder: Path, run: str, owner: Mapping[str, Any] | None = None) -> None:
        self.folder = folder / run
        self.run = run
        self.owner = dict(owner or {})
        self._lock = threading.Lock()

    def record(self, resource: str, action: str, **details: Any) -> None:
        """Add an entry; `details` must be JSON and hold no secret."""
        entry = {"time": time.time(), "run": self.run, "resource": resource, "action": action}
        line = json.dumps({**entry, **details}, sort_keys=True) + "\n"
        with self._lock:
            if not self.folder.is_dir():
                self._begin()
            _append(self.folder / "changes.jsonl", line.encode())

    def keep(
        self,
        resource: str,
        path: Path,
        shown: str,
        after: Shape | None,
        *,
        secret: bool = False,
    ) -> None:
        """Record that what is at `path` (known to users as `shown`) is about to become `after`.

        Args:
            after: as far as it is known; None when nothing will be there.
            secret: the file is declared as a Secret: what it holds is not kept.
        """
        before = shape(path)
        if before is not None and before["kind"] == "file":
            before["kept"] = not secret and self._content(path, before["sha256"])
        elif before is not None and before["kind"] == "directory" and after is None:
            before["tree"] = self._tree(path)
        secrecy = {"secret": True} if secret else {}
        self.record(resource, "file", path=shown, before=before, after=after, **secrecy)

    def kept(self, digest: str) -> Path:
        """Where a replaced content is."""
        return self.folder / "before" / digest

    def _begin(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder.parent.chmod(0o700)
        told = {"run": self.run, "since": time.time(), **self.owner}
        _write(self.folder / "run.json", json.dumps(told).encode())
        runs = sorted(p for p in self.folder.parent.iterdir() if p.is_dir())
        for old in runs[:-KEPT]:
            if old != self.folder:
                shutil.rmtree(old, ignore_errors=True)

    def _content(self, path: Path, digest: str) -> bool:
        """Keep a file's content; False when it is not what it was a moment ago."""
        target = self.kept(digest)
        if target.exists():
            return True
        with self._lock:
            if not self.folder.is_dir():
                self._begin()
        target.parent.mkdir(exist_ok=True, mode=0o700)
        beside = target.with_name(f".{digest}.{threading.get_ident()}")
        copied = hashlib.sha256()
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            with naming(beside), os.fdopen(handle, "wb") as out, path.open("rb") as source:
                for block in iter(lambda: source.read(1 << 20), b""):
                    copied.update(block)
                    out.write(block)
                out.flush()
                os.fsync(handle)
        except OSError:
            beside.unlink(missing_ok=True)
            raise
        if copied.hexdigest() != digest:
            beside.unlink()
            return False
        beside.rename(target)
        return True

    def _tree(self, folder: Path) -> list[Shape] | None:
        """All that is in a folder, with contents kept; None when that is too much."""
        paths = sorted(folder.rglob("*"))
        files = [p for p in paths if p.is_file() and not p.is_symlink()]
        if sum(p.stat().st_size for p in files) > TREE_LIMIT:
            return None
        found = []
        for path in paths:
            item = shape(path)
            if item is None or item["kind"] == "special":
                return None
            if item["kind"] == "file" and not self._content(path, item["sha256"]):
                return None
            found.append({"path": str(path.relative_to(folder)), **item})
        return found


def shape(path: Path) -> Shape | None:
    """What is at `path` now."""
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    owned = {"uid": status.st_uid, "gid": status.st_gid}
    mode = stat.S_IMODE(status.st_mode)
    if stat.S_ISLNK(status.st_mode):
        return {"kind": "link", "link": str(path.readlink()), **owned}
    if stat.S_ISREG(status.st_mode):
        return file_shape(status, digest_of(path))
    kind = "directory" if stat.S_ISDIR(status.st_mode) else "special"
    return {"kind": kind, "mode": mode, **owned}


def file_shape(status: os.stat_result, sha256: str) -> Shape:
    """A file with this status and content."""
    owned = {"uid": status.st_uid, "gid": status.st_gid}
    return {"kind": "file", "sha256": sha256, "mode": stat.S_IMODE(status.st_mode), **owned}


def folder_shape(status: os.stat_result, mode: int | None, uid: int, gid: int) -> Shape:
    """A folder with this status once it was given a mode and an owner; None and -1 leave them."""
    return {
        "kind": "directory",
        "mode": stat.S_IMODE(status.st_mode) if mode is None else mode,
        "uid": status.st_uid if uid == -1 else uid,
        "gid": status.st_gid if gid == -1 else gid,
    }


def digest_of(path: Path) -> str:
    """SHA-256 of a file's content, hex."""
    digest = hashlib.sha256()
    with path.open("rb") as source:
        for block in iter(lambda: source.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give an error of reading or writing the file's name: a write to a full disk has none."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def _append(path: Path, line: bytes) -> None:
    """Add a line, all of it or nothing."""
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    size = os.fstat(handle).st_size
    try:
        with naming(path):
            if os.write(handle, line) < len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            os.fsync(handle)
    except OSError:
        os.ftruncate(handle, size)
        raise
    finally:
        os.close(handle)


def _write(path: Path, data: bytes) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with naming(path), os.fdopen(handle, "wb") as out:
        out.write(data)
        out.flush()
        os.fsync(handle)
