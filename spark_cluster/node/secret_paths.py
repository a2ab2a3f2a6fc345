"""Paths on this node that hold secrets: neither the journal nor a diff says what is in them."""

from __future__ import annotations

import os
from pathlib import Path

from spark_cluster.node.durable import append_line, read_lines

LIST = "secret-paths"


class SecretPaths:
    """The paths that any run declared as a Secret, kept longer than the journals of those runs.

    Args:
        folder: the node's journal folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._list = folder / LIST
        self._known: set[str] | None = None

    def known(self) -> set[str]:
        """Return all paths, as declared and with links followed."""
        if self._known is None:
            listed = {path for path in read_lines(self._list)[0] if isinstance(path, str)}
            self._known = listed | self._of_journals()
        return self._known

    def has(self, shown: str, path: Path) -> bool:
        """Return whether `path` (`shown` to users) holds a secret."""
        known = self.known()
        return bool(known) and not known.isdisjoint(_names(shown, path))

    def add(self, shown: str, path: Path) -> None:
        """Note that `path` is to hold a secret, before it does."""
        for name in _names(shown, path) - self.known():
            append_line(self._list, name)
            self.known().add(name)

    def _of_journals(self) -> set[str]:
        """Return the paths from runs before this list existed."""
        entries = [e for p in self._folder.glob("*/changes.jsonl") for e in read_lines(p)[0]]
        return {e["path"] for e in entries if isinstance(e, dict) and e.get("secret")}


def _names(shown: str, path: Path) -> set[str]:
    """As declared, and as it is called when links above it are followed."""
    return {shown, f"{os.path.realpath(path.parent)}/{path.name}"}
