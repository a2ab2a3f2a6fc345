"""A revision of a registry in the cache: which of its files are taken (recipes by name and size,
never links or programs), as they were and as recipes of ours.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from ruamel.yaml import YAML

from spark_cluster import __version__
from spark_cluster.config import registries as known
from spark_cluster.config.project import Project
from spark_cluster.config.recipes import load_recipe
from spark_cluster.config.registries import Registry
from spark_cluster.config.yamlfile import load
from spark_cluster.errors import Failed, InvalidFile, SparkClusterError, UsageError
from spark_cluster.importers.files import read_file, write
from spark_cluster.importers.importer import Choice, Imported, no_choice

LARGEST_FILE = 256 << 10
"""Bytes of one recipe; the largest of the public registries has 30,000."""

MOST_FILES = 5000
"""Files of a registry that can be recipes; the largest public one has 400."""

MOST_SKIPPED = 200
"""Files that are listed as not taken."""

SUFFIXES = (".yaml", ".yml")

_PART = re.compile(r"[A-Za-z0-9_@][A-Za-z0-9_.@+ ,()=-]{0,127}")

CONVERTED_S = 120.0
"""Seconds for the conversion of all files of a registry; looked at between two files."""

_LONGEST = 400
"""Characters of a path, and of a text of a recipe that is kept in the list."""


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
            return "a folder, a link or a submodule; only files are taken"
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


def store(
    registry: Registry, revision: str, files: Iterable[SourceFile], skipped: Iterable[str]
) -> known.Index:
    """Put a revision into the cache, whole or not at all.

    Raises:
        UsageError: the cache cannot be written.
        Failed: its files take too long to convert.
    """
    target = known.snapshot_folder(registry, revision)
    try:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=target.parent) as scratch:
            staged = Path(scratch) / "snapshot"
            index = _fill(staged, registry, revision, list(files), tuple(skipped))
            (staged / "index.json").write_bytes(index.model_dump_json(indent=1).encode())
            _replace(staged, target, Path(scratch) / "old")
    except OSError as error:
        raise UsageError(
            f"{error.filename or target} cannot be written: {error.strerror}",
            hint="XDG_CACHE_HOME names another folder for the cache",
        ) from None
    return index


def again(registry: Registry, index: known.Index) -> known.Index:
    """Convert a snapshot anew, from the files that it has: the importers may know more now.

    Raises:
        UsageError: the cache cannot be written.
    """
    sources = known.snapshot_folder(registry, index.revision) / "sources"
    files = [
        SourceFile(str(path.relative_to(sources)), path.read_bytes())
        for path in sorted(sources.rglob("*"))
        if path.is_file()
    ]
    return store(registry, index.revision, files, index.skipped)


def _replace(staged: Path, target: Path, old: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        target.rename(old)
    try:
        staged.rename(target)
    except OSError:
        if not target.is_dir():  # another run has put it there meanwhile
            raise
    shutil.rmtree(old, ignore_errors=True)


def _fill(
    folder: Path,
    registry: Registry,
    revision: str,
    files: list[SourceFile],
    skipped: tuple[str, ...],
) -> known.Index:
    for file in files:
        place = folder / "sources" / file.path
        place.parent.mkdir(parents=True, exist_ok=True)
        with place.open("xb") as stream:  # a name that is there already would be a link to it
            stream.write(file.content)
    (folder / "recipes").mkdir(parents=True)
    listed, until = [], time.monotonic() + CONVERTED_S
    for path, name in names(sorted(file.path for file in files)):
        if time.monotonic() > until:
            raise Failed(
                f"the recipes of '{registry.name}' took more than {CONVERTED_S:g} s to convert",
                where=path,
                hint=f"name the folders with recipes under 'folders' of its entry in {known.FILE}",
            )
        listed += _converted(folder, path, name, registry, _origin(registry, revision, path))
    return known.Index(
        url=registry.url,
        revision=revision,
        made_by=__version__,
        recipes=tuple(listed),
        skipped=skipped,
    )


def _converted(
    folder: Path, path: str, name: str, registry: Registry, origin: str
) -> list[known.Listed]:
    """Convert one file and write the recipe; return its row, none of a file that is no recipe."""
    source, target = folder / "sources" / path, folder / "recipes" / f"{name}.yaml"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    try:
        made = _as_ours(source, name, registry, origin)
        target.write_text(made.text, encoding="utf-8")
        recipe = load_recipe(target, Project(folder, folder))
    except SparkClusterError as error:
        target.unlink(missing_ok=True)
        if not _looks_like_recipe(source):
            return []
        return [known.Listed(name=name, origin=path, sha256=digest, error=_short(error.message))]
    return [
        known.Listed(
            name=recipe.name,
            origin=path,
            sha256=digest,
            model=_short(recipe.model.name),
            base=_short(recipe.model.base or ""),
            description=_short(recipe.description),
            quantization=recipe.model.quantization or "",
            left_out=tuple(_short(f"{one.what}: {one.why}") for one in made.left_out),
            tags=recipe.tags,
        )
    ]


def imported(reference: str, folder: Path, choice: Choice, **given: Any) -> Imported:
    """Return the recipe of a registry, from the cache, and what became of every part of it.

    Args:
        reference: `@REGISTRY/RECIPE`.
        folder: the project's.
        choice: as `recipes import` takes it.
        given: `name`, `model`, `image` and `mods` as `files.write` takes them.

    Raises:
        UsageError: there is no such recipe, or an option is not for recipes of ours.
        InvalidFile: it cannot be imported, with the line.
    """
    registry, listed = known.find(reference, folder)
    path = known.source_of(reference, folder)
    name = given.pop("name", None) or listed.name
    given.pop("taken", None)
    if registry.format == "spark-cluster" and any(given.values()):
        no_choice(choice)
        raise UsageError(
            "--model, --image and --mods are for recipes of other tools",
            hint="change the recipe after the import",
        )
    origin = _origin(registry, known.pinned_revision(registry, folder) or "", listed.origin)
    return _as_ours(path, name, registry, origin, choice, **given)


def _origin(registry: Registry, revision: str, path: str) -> str:
    return f"{registry.url} at {revision[:12]}: {path}"


def _as_ours(
    file: Path,
    name: str,
    registry: Registry,
    origin: str,
    choice: Choice | None = None,
    **given: Any,
) -> Imported:
    """Return a file of a registry as a recipe of ours, which names where it comes from."""
    choice = choice or Choice()
    if registry.format == "spark-cluster":
        no_choice(choice)
        return _renamed(file, name)
    source = read_file(file, choice)
    source.origin = origin
    return write(source, name=name, **given)


def _renamed(source: Path, name: str) -> Imported:
    """A recipe in our form, as it is but for its name.

    Raises:
        InvalidFile: it is not YAML, or its name is not that of its file.
    """
    text = source.read_text(encoding="utf-8-sig", errors="replace")
    loaded = load(source, "recipe")
    if loaded.data.get("name") != source.stem:
        raise InvalidFile(
            f"its name is not '{source.stem}', as its file's", where=loaded.where(("name",))
        )
    if name != source.stem:
        stream, writer = io.StringIO(), YAML()
        writer.width = 98
        document = writer.load(text)
        document["name"] = name
        writer.dump(document, stream)
        text = stream.getvalue()
    return Imported("spark-cluster recipe", name, text)


def _looks_like_recipe(source: Path) -> bool:
    """Return whether a file that was not understood was meant as a recipe: it names a model."""
    try:
        data = load(source, "file").data
    except SparkClusterError:
        return True
    return bool({"model", "command", "container"} & set(data))


def _short(text: str) -> str:
    return " ".join(text.split())[:_LONGEST]
