"""The files of a registry that are taken: recipes by name and size, never links or programs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from spark_cluster.config.registries import Registry
from spark_cluster.errors import Failed

LARGEST_FILE = 256 << 10
"""Bytes of one recipe; the largest of the public registries has 30,000."""

MOST_FILES = 5000
"""Files of a registry that can be recipes; the largest public one has 400."""

MOST_SKIPPED = 200
"""Files that are listed as not taken."""

SUFFIXES = (".yaml", ".yml")

_PART = re.compile(r"[A-Za-z0-9_@][A-Za-z0-9_.@+ ,()=-]{0,127}")
_LONGEST = 400


@dataclass(frozen=True)
class SourceFile:
    """A file of a registry: its path there, and its content."""

    path: str
    content: bytes


@dataclass
class Chosen:
    """Decides about each file that a registry offers.

    Attributes:
        skipped: a sentence on each file that looks like a recipe and is not taken.
    """

    registry: Registry
    skipped: list[str] = field(default_factory=list)
    _folded: set[str] = field(default_factory=set)
    _count: int = 0

    def takes(self, path: str, size: int, *, regular: bool) -> bool:
        """Return whether a file is taken.

        Raises:
            Failed: the registry has too many.
        """
        if not path.lower().endswith(SUFFIXES) or not self._is_inside(path):
            return False
        if why := self._why_not(path, size, regular=regular):
            if len(self.skipped) < MOST_SKIPPED:
                self.skipped.append(f"{path[:_LONGEST]}: {why}")
            return False
        self._folded.add(path.casefold())
        self._count += 1
        if self._count > MOST_FILES:
            raise Failed(
                f"the registry '{self.registry.name}' has more than {MOST_FILES} recipes",
                hint="name the `folders` that are to be looked into",
            )
        return True

    def _is_inside(self, path: str) -> bool:
        """Return whether it is in one of the folders, and in no hidden one."""
        parts = PurePosixPath(path).parts
        if any(part.startswith(".") and part not in (".", "..") for part in parts):
            return False
        folders = self.registry.folders
        return not folders or any(path.startswith(f"{folder}/") for folder in folders)

    def _why_not(self, path: str, size: int, *, regular: bool) -> str:
        if not regular:
            return "a link or a submodule; only files are taken"
        if len(path) > _LONGEST or not all(map(_PART.fullmatch, path.split("/"))):
            return "its name has characters that are not taken, or leads elsewhere"
        if size > LARGEST_FILE:
            return f"{size} bytes; a recipe has {LARGEST_FILE} at most"
        if path.casefold() in self._folded:
            return "another file has the same name but for its case"
        return ""


def names(paths: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each path with the name of its recipe: that of the file, or of the whole path where
    several files have the same; none for a third one of the same name."""
    stems = [_word(PurePosixPath(path).stem) for path in paths]
    folded = [stem.casefold() for stem in stems]  # there are file systems without case
    seen: set[str] = set()
    for path, stem in zip(paths, stems, strict=True):
        whole = _word(str(PurePosixPath(path).with_suffix("")).replace("/", "-"))
        name = stem if folded.count(stem.casefold()) == 1 else whole
        if name and name.casefold() not in seen:
            seen.add(name.casefold())
            yield path, name


def _word(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "-", text).strip("-.")
