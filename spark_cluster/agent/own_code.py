"""The agent's own code on this node: parts that come later, and the folders of other versions."""

from __future__ import annotations

import importlib
import io
import os
import re
import shutil
import threading
import zipfile
from collections.abc import Callable
from pathlib import Path

from spark_cluster.agent import bootstrap
from spark_cluster.node import own_program, paths
from spark_cluster.node.values import ResourceError

_VERSION = re.compile(r"[0-9a-f]{64}(?:\.([0-9]+)(?:\.damaged)?)?")
"""Name of a version's folder, or of what an agent with this number of a process has left."""


class OwnCode:
    """A finder of imports (`sys.meta_path`) that brings a part of this code before it is imported.

    So nothing else has to know what is in a part, and a project's own resource can import it too.

    Args:
        fetch: brings a part, by its name, from the laptop: a zip.
        folder: of the code.
    """

    def __init__(
        self, fetch: Callable[[str], bytes], folder: Path = Path(own_program.HERE)
    ) -> None:
        self._fetch = fetch
        self._folder = folder
        self._lock = threading.Lock()
        self._came: dict[str, bytes] = {}
        self._lacking = bootstrap.parts_of(str(folder))
        """Parts that were not needed yet; whether they are on this node is not known."""

    def find_spec(self, fullname: str, _path: object, _target: object = None) -> None:
        """Have the part that holds a module on this node, whole; the next finder finds it.

        Raises:
            ResourceError: what is on the disk is not what was sent, or the laptop is gone.
            OSError: there is no room for it.
        """
        if not self._lacking or not fullname.startswith("spark_cluster."):
            return
        path = fullname.replace(".", "/")
        with self._lock:
            for name, part in list(self._lacking.items()):
                if {f"{path}.py", f"{path}/__init__.py"}.isdisjoint(part["files"]):
                    continue
                if not self._is_here(part):
                    self._keep(name, part)
                    importlib.invalidate_caches()
                del self._lacking[name]

    def _is_here(self, part: bootstrap.Part) -> bool:
        try:
            found = bootstrap.digest_of_files(str(self._folder), part["files"])
        except OSError:
            return False
        return found == part["sha256"]

    def _keep(self, name: str, part: bootstrap.Part) -> None:
        """Put the files of a part in their places, each of them whole: others may read them."""
        if name not in self._came:  # after a failure to write, it is not asked for again
            self._came[name] = self._fetch(name)
        staged = self._folder.with_name(f"{self._folder.name}.{os.getpid()}")
        try:
            zipfile.ZipFile(io.BytesIO(self._came[name])).extractall(staged)
            for path in part["files"]:
                target = self._folder / path
                target.parent.mkdir(parents=True, exist_ok=True)
                (staged / path).replace(target)
        finally:
            shutil.rmtree(staged, ignore_errors=True)
        if not self._is_here(part):
            raise ResourceError(
                f"{self._folder}: the part {name!r} of the agent's code was written, and what is "
                "read back is not what was sent",
                "`journalctl -k` on the node shows faults of its disk",
            )
        del self._came[name]


def forget_others(folder: str, root: str) -> None:
    """Remove older versions of the code, and what was left of an agent that was killed.

    The last version stays, as do those that transient units run from.

    Args:
        folder: of the code of this version; the others are beside it.
        root: where the node's file system begins; "/" but in tests.
    """
    units = Path(root, paths.TRANSIENT_UNITS.lstrip("/")).glob(own_program.UNITS)
    running = b"".join(unit.read_bytes() for unit in units)
    versions = []
    for path in Path(folder).parent.iterdir():
        found = _VERSION.fullmatch(path.name)
        if found and found[1]:
            if not Path("/proc", found[1]).exists():
                shutil.rmtree(path, ignore_errors=True)
        elif found and str(path) != folder and path.name.encode() not in running:
            versions.append((path.stat().st_mtime, path))
    for _, path in sorted(versions)[:-1]:
        shutil.rmtree(path, ignore_errors=True)
