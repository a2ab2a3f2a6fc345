"""Tells what kind of file somebody wants to import, and has it read."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.importing import KINDS, commandline, spark_vllm_docker, sparkrun, vllm_recipes
from spark_cluster.importing.result import Left
from spark_cluster.importing.source import Source
from spark_cluster.importing.vllm_recipes import Choice
from spark_cluster.userfiles.yamlfile import Sourced, described, load, shown

_YAML = (".yaml", ".yml", ".json")
_COMMAND = re.compile(r"(?m)(^|[\s/\"'])(docker|podman|vllm|python3?)\s")
_TRIED = "tried: " + ", ".join(KINDS)


def read_file(path: Path, choice: Choice | None) -> Source:
    """As `spark_cluster.importing.read`."""
    is_yaml = path.suffix.lower() in _YAML
    try:
        source = load(path, "file")
    except InvalidFile as error:
        text = None if is_yaml else _text(path)
        if text is None:
            raise InvalidFile(error.message, where=error.where, hint=error.hint or _TRIED) from None
        return _command_file(path, text, choice)
    if vllm_recipes.claims(source.data):
        return vllm_recipes.read(source, choice)
    _no_choice(choice)
    if sparkrun.claims(source.data):
        return sparkrun.read(source)
    if spark_vllm_docker.claims(source.data):
        return spark_vllm_docker.read(source)
    raise _unknown(source)


def read_text(text: str, origin: str = "a pasted command line") -> Source:
    """As `spark_cluster.importing.read_command`."""
    reading = commandline.read(text)
    left = [Left(what, "it stands beside the launch") for what in reading.left_out]
    return Source(reading.launch, origin=origin, left_out=left, notes=reading.notes)


def _command_file(path: Path, text: str, choice: Choice | None) -> Source:
    _no_choice(choice)
    try:
        return read_text(text, origin=path.name)
    except UsageError as error:
        line = re.match(r"line (\d+)", error.where)
        where = f"{shown(path)}:{line[1]}" if line else shown(path)
        raise InvalidFile(error.message, where=where, hint=error.hint or _TRIED) from None


def _text(path: Path) -> str | None:
    """The file as text where it may be a command line; None for what is no text at all."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(commandline.MAX_CHARACTERS + 1)
        text = raw.decode("utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return None
    if len(raw) > commandline.MAX_CHARACTERS or re.search(r"[\x00-\x08\x0e-\x1f]", text):
        return None
    return text if _COMMAND.search(text) else None


def _no_choice(choice: Choice | None) -> None:
    if choice is not None and choice != Choice():
        raise UsageError(
            "--variant and --feature are for model files of vllm-project/recipes",
            hint="leave them out for this file",
        )


def _unknown(source: Sourced) -> InvalidFile:
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
        hint=_TRIED,
    )
