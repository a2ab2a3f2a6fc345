"""Temporary files next to what they become: names that tell whose they are, removal after a crash.

A new file or link is made under a temporary name in its folder and then renamed; a folder that is
to be removed is renamed to one first. The name is `.NAME.spark-cluster-` and 16 hexadecimal digits,
of which the last 8 are a checksum of the others: no file of a user is taken for one. The folders
are listed, before the first such file is made in each, in `temporary-folders` below the node's
state folder; the next run removes what a crash has left there.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from spark_cluster.node import safe_paths
from spark_cluster.node.durable import (
    append_line,
    is_being_written,
    is_temporary,
    make_folder,
    read_lines,
    temporary_name,
)
from spark_cluster.node.faults import explain
from spark_cluster.node.values import ResourceError

LIST = "temporary-folders"
_lock = threading.Lock()
_in_use: set[str] = set()
"""Names of the temporary files that this process is at work with."""


class TemporaryFiles:
    """The temporary files of one node.

    Args:
        state: the node's state folder.
    """

    def __init__(self, state: Path) -> None:
        self._list = state / LIST

    def path_for(self, target: Path) -> Path:
        """A temporary name in the folder of `target`, which may be an open one (`safe_paths`); the
        folder is listed first."""
        folder = os.path.realpath(target.parent)
        with _lock:
            if folder not in read_lines(self._list)[0]:
                make_folder(self._list.parent, 0o755)
                append_line(self._list, folder)
            path = target.parent / temporary_name(target.name)
            _in_use.add(path.name)
        return path

    def done(self, path: Path) -> None:
        """Remove a temporary file if it is still there: it was renamed, or is given up.

        Raises:
            OSError: it cannot be removed; `filename` is the whole path of what could not be.
        """
        try:
            _remove(path)
        finally:
            _in_use.discard(path.name)

    def remove_folder(self, target: Path) -> None:
        """Remove a folder: first its name, so that after a crash no half of it is in its place.

        Raises:
            OSError: a part cannot be removed; what is left has its name again.
        """
        staged = self.path_for(target)
        target.rename(staged)
        try:
            self.done(staged)
        except OSError as error:
            staged.rename(target)
            error.filename = str(error.filename).replace(str(staged), str(target), 1)
            raise

    def clean(self, note: Callable[[str], None]) -> None:
        """Remove what a crash has left. Only for the holder of the node's lock.

        Args:
            note: called with each one that cannot be removed; it stays listed for the next run.
        """
        with _lock:
            folders = [Path(name) for name in read_lines(self._list)[0] if isinstance(name, str)]
            if not folders:
                return
            left = [folder for folder in folders if _clean(folder, note)]
            if not left:
                self._list.unlink(missing_ok=True)


def remove_tree(folder: Path) -> None:
    """Remove a folder with all in it.

    Raises:
        OSError: a part cannot be removed; `filename` is its whole path, which rmtree's own error
            does not have before Python 3.13.
    """
    named: dict[str, Any] = {"onexc" if sys.version_info >= (3, 12) else "onerror": _raise_named}
    shutil.rmtree(folder, **named)


def _raise_named(_function: object, path: str, raised: Any) -> NoReturn:
    error = raised[1] if isinstance(raised, tuple) else raised
    if isinstance(error, OSError):
        error.filename = str(path)
    raise error


def mount_points() -> list[str]:
    """Return where file systems are mounted; nothing on a system that does not tell.

    source: proc(5), /proc/self/mountinfo: space, tab, newline and backslash are in octal.
    """
    try:
        lines = Path("/proc/self/mountinfo").read_bytes().split(b"\n")
    except OSError:
        return []
    return [os.fsdecode(_unescaped(line.split(b" ")[4])) for line in lines if line]


def mounts_below(folder: Path) -> bool:
    """Return whether a file system is mounted on `folder` or in it."""
    inside = os.path.realpath(folder)
    return any(point == inside or point.startswith(f"{inside}/") for point in mount_points())


def _unescaped(point: bytes) -> bytes:
    return re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found[1], 8)]), point)


def _clean(folder: Path, note: Callable[[str], None]) -> bool:
    """Remove our temporary files in a folder; return whether any are left."""
    try:
        with safe_paths.folder(folder) as pinned:
            for path in _ours(pinned):
                if path.name not in _in_use and not is_being_written(path):
                    _try_to_remove(folder, path, note)
            return bool(_ours(pinned))
    except ResourceError as error:
        note(f"what a crashed run left cannot be removed: {error.message}; remove it yourself")
        return True
    except OSError:
        return False  # the folder is gone, and what was in it


def _ours(folder: Path) -> list[Path]:
    return [path for path in folder.iterdir() if is_temporary(path.name)]


def _try_to_remove(folder: Path, path: Path, note: Callable[[str], None]) -> None:
    try:
        _remove(path)
    except OSError as error:
        error.filename = str(error.filename).replace(str(path.parent), str(folder), 1)
        note(f"what a crashed run left cannot be removed: {explain(error)}; remove it yourself")


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        if not mounts_below(path):
            remove_tree(path)
    else:
        path.unlink(missing_ok=True)
