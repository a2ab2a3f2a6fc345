"""The detection of what kind of file is to be imported, and its import."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spark_cluster.config.yamlfile import Sourced, described
from spark_cluster.errors import InvalidFile
from spark_cluster.importers.importer import Choice, Given
from spark_cluster.importers.registry import LAST, Importers
from spark_cluster.importers.source import Source

MISSING = (
    "give the path of a file, @REGISTRY/RECIPE of a registry, or --command 'vllm serve ...'; "
    "spark-cluster recipes search WORDS finds recipes by words"
)


def read_file(path: Path, choice: Choice | None = None) -> Source:
    """Return what a file says, whichever kind it is.

    Args:
        choice: variant and features, for a model file of vllm-project/recipes.

    Raises:
        InvalidFile: it is none of the kinds, or wrong, with the line.
        UsageError: it has no such variant or feature, or `choice` is given for another kind.
    """
    if not path.exists():
        raise InvalidFile("no such file", where=str(path), hint=MISSING)
    given, importers = Given(path), Importers()
    importer = importers.find(given)
    if importer is None:
        raise _unknown(given, importers.tried)
    try:
        source = importer.read(given, choice or Choice())
    except InvalidFile as error:
        if importer not in LAST or error.hint:
            raise
        raise InvalidFile(error.message, where=error.where, hint=importers.tried) from None
    if isinstance(given.loaded, Sourced):
        source.notes[:0] = given.loaded.notes
    source.notes += importers.broken
    return source


def _unknown(given: Given, tried: str) -> InvalidFile:
    if isinstance(given.loaded, InvalidFile):
        error = given.loaded
        return InvalidFile(error.message, where=error.where, hint=error.hint or tried)
    return _unknown_yaml(given.loaded, tried)


def _unknown_yaml(source: Sourced, tried: str) -> InvalidFile:
    data: dict[str, Any] = source.data
    where = source.where()
    if isinstance(data.get("model"), dict) and isinstance(data.get("image"), dict):
        return InvalidFile(
            "this is a recipe of spark-cluster already",
            where=where,
            hint="put it into the project's folder recipes/ and use its name",
        )
    if isinstance(data.get("services"), dict):
        return InvalidFile(
            "this is a compose file",
            where=where,
            hint="give the command of its service as --command 'vllm serve ...'",
        )
    fields = ", ".join(str(key) for key in list(data)[:6])
    return InvalidFile(
        f"not a file of a known kind; its fields are {fields or described(data)}",
        where=where,
        hint=tried,
    )
