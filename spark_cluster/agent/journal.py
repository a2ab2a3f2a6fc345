"""What a run changed on this node, kept so that it can be shown and put back."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Journal:
    """One run's changes: `FOLDER/RUN/changes.jsonl` and the replaced contents under `before/`.

    The entry is written and synced before the change it tells of, so that a power cut leaves
    either an entry too many or none, never an unrecorded change.

    Args:
        folder: the node's journal folder (only root may read it: contents can be private).
        run: id of the run.
    """

    def __init__(self, folder: Path, run: str) -> None:
        self.folder = folder / run
        self.run = run
        self._lock = threading.Lock()

    def record(self, resource: str, action: str, **details: Any) -> None:
        """Add an entry; `details` must be JSON and hold no secret."""
        entry = {"time": time.time(), "run": self.run, "resource": resource, "action": action}
        line = json.dumps({**entry, **details}, sort_keys=True) + "\n"
        with self._lock:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            _append(self.folder / "changes.jsonl", line.encode())

    def keep(self, resource: str, path: Path, shown: str) -> None:
        """Record that `path` (known to users as `shown`) is about to be replaced or removed."""
        try:
            status = path.lstat()
        except FileNotFoundError:
            self.record(resource, "file", path=shown, before=None)
            return
        meta = {"mode": stat.S_IMODE(status.st_mode), "uid": status.st_uid, "gid": status.st_gid}
        if stat.S_ISLNK(status.st_mode):
            link = str(path.readlink())
            self.record(resource, "file", path=shown, before={"link": link, **meta})
            return
        if not stat.S_ISREG(status.st_mode):
            self.record(resource, "file", path=shown, before={"kind": "directory", **meta})
            return
        content = path.read_bytes()
        digest = hashlib.sha256(content).hexdigest()
        before = self.folder / "before"
        before.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not (before / digest).exists():
            # Two documents at once may replace the same content.
            beside = before / f".{digest}.{threading.get_ident()}"
            target = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            try:
                with naming(beside), os.fdopen(target, "wb") as out:
                    out.write(content)
                    out.flush()
                    os.fsync(target)
                beside.rename(before / digest)
            except OSError:
                beside.unlink(missing_ok=True)
                raise
        self.record(resource, "file", path=shown, before={"sha256": digest, **meta})


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
