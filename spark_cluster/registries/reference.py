"""The import of a recipe of a registry into the project, from what lies in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from spark_cluster.errors import UsageError
from spark_cluster.importers.files import read_file
from spark_cluster.importers.importer import Choice, Imported, no_choice
from spark_cluster.importers.recipe_text import write
from spark_cluster.loader import registries as known
from spark_cluster.registries.snapshot import ours_renamed


def imported(
    reference: str,
    folder: Path,
    choice: Choice,
    *,
    name: str | None = None,
    model: str | None = None,
    image: str | None = None,
    mods: Sequence[Path] = (),
) -> Imported:
    """Return the recipe, and what became of every part of its source.

    Args:
        reference: `@REGISTRY/RECIPE`.
        folder: the project's.
        choice, name, model, image, mods: as `recipes import` takes them.

    Raises:
        UsageError: there is no such recipe, or an option is not for recipes of ours.
        InvalidFile: it cannot be imported, with the line.
    """
    registry, listed = known.find(reference, folder)
    path = known.source_of(reference, folder)
    if registry.format == "spark-cluster":
        no_choice(choice)
        if model or image or mods:
            raise UsageError(
                "--model, --image and --mods are for recipes of other tools",
                hint="change the recipe after the import",
            )
        return ours_renamed(path, name or listed.name)
    source = read_file(path, choice)
    revision = known.pinned_revision(registry, folder) or ""
    source.origin = f"{registry.url} at {revision[:12]}: {listed.origin}"
    return write(source, name=name or listed.name, model=model, image=image, mods=mods)
