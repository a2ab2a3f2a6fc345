"""A revision of a registry in the cache: its files as they were, and as recipes of ours."""

from __future__ import annotations

import contextlib
import hashlib
import io
import shutil
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from ruamel.yaml import YAML

from spark_cluster import __version__
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.registries import Registry
from spark_cluster.config.yamlfile import load
from spark_cluster.errors import Failed, InvalidFile, SparkClusterError, UsageError
from spark_cluster.importers.files import read_file
from spark_cluster.importers.importer import Imported, Source
from spark_cluster.importers.recipe_text import write
from spark_cluster.loader import registries as known
from spark_cluster.loader.project import Project
from spark_cluster.loader.recipes import load_recipe
from spark_cluster.registries.files import SourceFile, names

CONVERTED_S = 120.0
"""Seconds for the conversion of all files of a registry; looked at between two files."""

_LONGEST = 400
"""Characters of a text of a registry's recipe that are kept in the list."""


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
            (staged / "index.json").write_bytes(index.to_json())
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
    contents = {file.path: file.content for file in files}
    listed, until = [], time.monotonic() + CONVERTED_S
    for path, name in names(sorted(contents)):
        if time.monotonic() > until:
            raise Failed(
                f"the recipes of '{registry.name}' took more than {CONVERTED_S:g} s to convert",
                where=path,
                hint=f"name the folders with recipes under 'folders' of its entry in {known.FILE}",
            )
        origin = f"{registry.url} at {revision[:12]}: {path}"
        row = _converted(folder, path, name, origin, ours=registry.format == "spark-cluster")
        if row is not None:
            listed.append(row)
    return known.Index(registry.url, revision, __version__, tuple(listed), skipped)


def _converted(
    folder: Path, path: str, name: str, origin: str, *, ours: bool
) -> known.Listed | None:
    """Convert one file and write the recipe; None for a file that is no recipe at all."""
    source, target = folder / "sources" / path, folder / "recipes" / f"{name}.yaml"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()
    try:
        imported = ours_renamed(source, name) if ours else write(_read(source, origin), name=name)
        target.write_text(imported.text, encoding="utf-8")
        recipe = load_recipe(target, Project(folder, folder))
    except SparkClusterError as error:
        with contextlib.suppress(FileNotFoundError):
            target.unlink()
        if not _looks_like_recipe(source):
            return None
        return known.Listed(name, path, digest, error=_short(error.message))
    left_out = tuple(_short(f"{one.what}: {one.why}") for one in imported.left_out)
    return _listed(recipe, path, digest, left_out)


def _listed(recipe: Recipe, path: str, digest: str, left_out: tuple[str, ...]) -> known.Listed:
    return known.Listed(
        recipe.name,
        path,
        digest,
        model=_short(recipe.model.name),
        base=_short(recipe.model.base or ""),
        description=_short(recipe.description),
        quantization=recipe.model.quantization or "",
        left_out=left_out,
        tags=recipe.tags,
    )


def _read(source: Path, origin: str) -> Source:
    """What another tool's file says; the recipe names where it comes from."""
    found = read_file(source)
    found.origin = origin
    return found


def ours_renamed(source: Path, name: str) -> Imported:
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
