"""Our own notes on models, next to the hub cache: manifests and pins.

They are in a folder of root's; what cannot be read there is said before anything is removed.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
from pathlib import Path
from typing import Any

from spark_cluster.node.durable import make_folder, read_object, sync_folder, write_file
from spark_cluster.node.store.manifest import BadManifest, Manifest, is_repository, manifest_path
from spark_cluster.node.values import ResourceError

PINS = "pins.json"

_NAME = re.compile(r"(?P<repository>[^@]+)(?:@(?P<commit>[0-9a-f]{40}))?")


class Records:
    """The notes on one node.

    Args:
        folder: manifest.OURS, below the root of the node.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def manifest(self, repository: str, commit: str) -> Manifest | None:
        """The manifest that a pull or copy has kept; None without one, or if it is damaged."""
        try:
            found = Manifest.from_document(read_object(self._manifest(repository, commit)))
        except BadManifest:
            return None
        return found if (found.repository, found.commit) == (repository, commit) else None

    def keep(self, manifest: Manifest) -> None:
        """Keep a manifest, durably."""
        path = self._manifest(manifest.repository, manifest.commit)
        make_folder(self.folder)
        make_folder(path.parent)
        write_file(path, json.dumps(manifest.document()).encode())

    def forget(self, repository: str, commit: str) -> None:
        """Forget the manifest of a revision that was removed."""
        path = self._manifest(repository, commit)
        path.unlink(missing_ok=True)
        if path.parent.is_dir():
            sync_folder(path.parent)

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
        make_folder(self.folder)
        handle = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)  # held for the time of one write
            pins = self._pins()
            if (name in pins) == pinned:
                return False
            kept = {one: since for one, since in pins.items() if one != name}
            kept |= {name: now} if pinned else {}
            write_file(self.folder / PINS, json.dumps(kept, sort_keys=True).encode())
        finally:
            os.close(handle)
        return True

    def _manifest(self, repository: str, commit: str) -> Path:
        return manifest_path(self.folder, repository, commit)

    def _pins(self) -> dict[str, Any]:
        path = self.folder / PINS
        try:
            found = json.loads(path.read_bytes())
        except FileNotFoundError:
            return {}
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ResourceError(
                f"{path} cannot be read: it is damaged, or was not written by spark-cluster",
                f"look at it; without it (rm {path}) nothing is pinned",
            )
        return found
