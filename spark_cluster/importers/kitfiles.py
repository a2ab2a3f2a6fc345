"""The files of a kit: a folder that someone shares, of which nothing outside is ever read.

A link that leads out of the folder, a path such as `../../etc/passwd`, a device and a file beyond
the limits count as not there.
"""

from __future__ import annotations

import os
import re
import stat
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from pathlib import Path

from spark_cluster.importers.expansion import ValueRoom
from spark_cluster.importers.importer import MOST_TEXT, MOST_TRIED, SCRIPT
from spark_cluster.node import safe_paths
from spark_cluster.node.values import ResourceError

LARGEST_FILE = 256 << 10
"""Bytes of a file that is read; the largest start script of the public kits has 90,000."""

MOST_FILES = 2000
"""Files of a kit that are looked at; those beyond are not seen."""

DEEPEST = 4
"""Folders inside of folders that are looked into."""

EXAMPLE = re.compile(r"\.?[\w.-]*env[\w.-]*(?:example|sample|template)")
PRESET = re.compile(rf"{EXAMPLE.pattern}|[\w.-]+\.env|\.env\.[\w-]+")
"""Names of files that people copy to `.env`, and of every file of variables but `.env` itself."""

_GUIDE = re.compile(r"(?:readme|quick-?start)\.md", re.IGNORECASE)
_HEADING, _FENCE = re.compile(r"(#+)\s+(.*)"), re.compile(r"\s*(```|~~~)")
_NAMES, _WORDS = re.compile(r"[\w.-][\w./-]*"), re.compile(r"[a-z0-9]+")


def code_blocks(guide: str) -> Iterator[tuple[str, str]]:
    """Yield the headings above each block of code, and the code."""
    headings: dict[int, str] = {}
    code: list[str] | None = None
    for line in guide.splitlines():
        if _FENCE.match(line):
            if code is not None:
                yield ": ".join(headings[level] for level in sorted(headings)), "\n".join(code)
            code = [] if code is None else None
        elif code is not None:
            code.append(line)
        elif heading := _HEADING.match(line):
            level = len(heading[1])
            headings = {above: text for above, text in headings.items() if above < level}
            headings[level] = heading[2].strip(" *#")


@dataclass(frozen=True)
class KitFolder:
    """The folder of a kit.

    Args:
        root: the folder, as an absolute path.
        preset: the file of variables that was chosen in place of the kit's own.
        room: what may be read to find out how its files call one another.
    """

    root: Path
    preset: Path | None = None
    room: ValueRoom = field(default_factory=ValueRoom)

    def path(self, name: str, beside: Path | None = None) -> Path | None:
        """Return a regular file of the kit by its name; None for anything else.

        Args:
            name: as a file of the kit writes it.
            beside: the folder that a relative name begins from; the kit's own by default.
        """
        place, status = self._seen(name, beside)
        regular = status is not None and stat.S_ISREG(status.st_mode)
        return place if regular and status and status.st_size <= LARGEST_FILE else None

    def has_folder(self, name: str, beside: Path) -> bool:
        """Return whether a folder of this name, other than the kit itself, is in the kit."""
        place, status = self._seen(name, beside)
        return status is not None and stat.S_ISDIR(status.st_mode) and place != self.root.resolve()

    def is_missing(self, name: str, beside: Path) -> bool:
        """Return whether a name leads to a place in the kit at which there is nothing."""
        place = Path(os.path.normpath(beside.absolute() / name.replace("\0", "")))
        inside = any(map(place.is_relative_to, (self.root, self.root.resolve())))
        return inside and not os.path.lexists(place)

    def _seen(self, name: str, beside: Path | None) -> tuple[Path, os.stat_result | None]:
        """A place with all links followed, and what is there; nothing outside of the kit, and
        nothing whose name could write lines of its own into a recipe or onto a terminal."""
        place, root = self.root, self.root.resolve()
        try:
            place = ((beside or self.root).absolute() / name).resolve()
            inside = place.is_relative_to(root) and str(place.relative_to(root)).isprintable()
            return place, place.stat() if inside else None
        except (OSError, RuntimeError, ValueError):  # a loop of links, a zero byte
            return place, None

    def content(self, path: Path) -> bytes:
        """Return a file that `path` has found, whole; empty if it has become something else since,
        or too large."""
        try:
            with safe_paths.file_in(path.resolve()) as stream:
                found = stream.read(LARGEST_FILE + 1)
        except (OSError, RuntimeError, ResourceError):
            return b""
        return found if len(found) <= LARGEST_FILE else b""

    def text(self, path: Path) -> str:
        """Return the text of a file that `path` has found; empty where it is not text."""
        try:
            return self.content(path).decode("utf-8-sig")
        except UnicodeDecodeError:
            return ""

    def script(self, name: str) -> str:
        """Return the text of a file by the path that it has in a container: a file of the kit
        itself, or the only one of this name, which the image has a copy of; empty for others."""
        found = self.named(name)
        return self.text(found) if found else ""

    def named(self, name: str) -> Path | None:
        """Return a file by its path from the kit's top, else the only one of its name."""
        found = self.path(name)
        alike = [] if found else self._by_name.get(name.rpartition("/")[2], [])
        return alike[0].resolve() if len(alike) == 1 else found

    @cached_property
    def readme(self) -> str:
        """The text of its README and, behind it, of its quick start; empty without them."""
        guides = [
            one for one in self.files if one.parent == self.root and _GUIDE.fullmatch(one.name)
        ]
        return "\n".join(map(self.text, reversed(guides)))

    @cached_property
    def commands(self) -> list[str]:
        """The blocks of code of its README and quick start."""
        return [code for _, code in code_blocks(self.readme)]

    @cached_property
    def scripts(self) -> dict[str, str]:
        """The first scripts with their texts, by their names; none of a kit with longer ones."""
        paths = islice((path for path in self.files if SCRIPT.fullmatch(path.name)), MOST_TRIED)
        found = {str(path.relative_to(self.root)): self.text(path) for path in paths}
        return found if sum(map(len, found.values())) <= MOST_TEXT else {}

    @cached_property
    def _by_name(self) -> dict[str, list[Path]]:
        """The files by their names: a script may speak of many thousand paths."""
        found = defaultdict[str, list[Path]](list)
        for path in self.files:
            found[path.name].append(path)
        return found

    @cached_property
    def presets(self) -> dict[Path, str]:
        """Files of variables with their links followed, and their names in the kit."""
        found: dict[Path, str] = {}
        for path in self.files:
            if PRESET.fullmatch(path.name):
                found.setdefault(path.resolve(), str(path.relative_to(self.root)))
        return found

    def example(self, path: Path) -> Path | None:
        """Return the file from which people make the `.env` of a file of the kit: one with a word
        of its name; an example; one that the README names; the nearest one."""
        places, words = [path.parent, self.root, self.root / "config"], _WORDS.findall(path.name)
        at = {one.rpartition("/")[2]: at for at, one in reversed([*enumerate(self._named)])}
        found: dict[Path, tuple[bool, bool, bool, int, int | None]] = {}
        for file, name in self.presets.items():
            own, folder = Path(name).name, (self.root / name).parent
            if "worker" not in own and (folder in places or name in self._named):
                apart = set(words).isdisjoint(_WORDS.findall(own))
                place = places.index(folder) if folder in places else len(places)
                found[file] = (
                    apart,
                    not EXAMPLE.fullmatch(own),
                    own not in at,
                    place,
                    at.get(own, 0),
                )
        return min(found, key=found.__getitem__, default=None)

    @cached_property
    def _named(self) -> dict[str, None]:
        """What the README names that could be files, in its order."""
        return dict.fromkeys(_NAMES.findall(self.readme))

    @cached_property
    def files(self) -> tuple[Path, ...]:
        """The regular files by depth and name, none of hidden folders."""
        return tuple(self._walked())

    def _walked(self) -> Iterator[Path]:
        seen, level = 0, [self.root]
        for _ in range(DEEPEST):
            below: list[Path] = []
            for folder in level:
                try:
                    entries = sorted(os.scandir(folder), key=lambda one: one.name)
                except OSError:
                    continue
                for entry in entries:
                    seen += 1
                    if seen > MOST_FILES:
                        return
                    is_file = entry.is_file(follow_symlinks=False)  # of a link, `path` says it
                    if not entry.name.isprintable():
                        continue
                    if entry.is_dir(follow_symlinks=False) and not entry.name.startswith("."):
                        below.append(Path(entry.path))
                    elif is_file or self.path(entry.path) is not None:
                        yield Path(entry.path)
            level = below
