"""A recipe made of another one and what the command line changes in it, in the project's folder."""

from __future__ import annotations

import io
import re
import shutil
import tempfile
import textwrap
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

from spark_cluster.config.overrides import text as options_of
from spark_cluster.config.project import Project
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipes import load_recipe
from spark_cluster.errors import UsageError

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


def save(recipe: Recipe, name: str, project: Project, *, force: bool = False) -> Path:
    """Write a recipe, with its overrides as its own values, to the project's `recipes/`.

    Args:
        recipe: as loaded, so that its paths on this machine are absolute.
        name: of the new one, which is its file's.
        force: replace a file that is there.

    Raises:
        UsageError: the name cannot be used or is taken, or the file cannot be written.
    """
    if not NAME.fullmatch(name):
        raise UsageError(
            f"recipe {name!r}: expected letters, digits, '_', '-' and '.'",
            hint=f"it is written to {project.folder / 'recipes'}",
        )
    path = project.folder / "recipes" / f"{name}.yaml"
    if name in project.list("recipes") and not force:
        raise UsageError(
            f"there is a recipe {name} already",
            hint="choose another name, or replace (or hide) it with --force",
        )
    write_recipe(path, text(recipe, name), project)
    return path


def write_recipe(
    path: Path, content: str, project: Project, files: Mapping[str, bytes] = MappingProxyType({})
) -> None:
    """Write a recipe to a temporary folder, and rename it when our own reader has taken it.

    Args:
        files: next to it, by their path relative to it; folders that are there are replaced.

    Raises:
        UsageError: it cannot be written.
        InvalidFile: it is wrong.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".recipe-", dir=path.parent) as folder:
            staged = Path(folder) / path.name
            staged.write_text(content, encoding="utf-8")
            load_recipe(staged, project)
            for name, data in files.items():
                place = staged.parent / name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(data)
            for top in folders_of(files):
                if (path.parent / top).exists():
                    shutil.rmtree(path.parent / top)
                (staged.parent / top).replace(path.parent / top)
            staged.chmod(0o644)
            staged.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def folders_of(files: Iterable[str]) -> set[str]:
    """Return the folders that a recipe's files are in."""
    return {name.partition("/")[0] for name in files}


def text(recipe: Recipe, name: str) -> str:
    """Return the text of the file."""
    data: dict[str, Any] = recipe.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    data = {"name": name, **{key: value for key, value in data.items() if key != "name"}}
    full = {key: value for key, value in data.items() if value not in ([], {})}
    changes = options_of(recipe.overrides)
    head = f"Saved from the recipe {recipe.name}" + (f" with {changes}" if changes else "") + "."
    comment = "\n".join(commented_text(head, "# ", "# "))
    return f"{comment}\n{yaml_of(commented(full))}"


WIDTH = 98
"""Columns of a line."""


def commented_text(text: str, first: str, following: str) -> list[str]:
    """Return the lines of a comment, which begin so; no word is cut."""
    wrapper = textwrap.TextWrapper(WIDTH, initial_indent=first, subsequent_indent=following)
    wrapper.break_long_words = wrapper.break_on_hyphens = False
    return wrapper.wrap(" ".join(text.split()))


def yaml_of(document: CommentedMap) -> str:
    """Return the text of a document that `commented` made."""
    writer = YAML()
    writer.width = WIDTH
    writer.indent(mapping=2, sequence=4, offset=2)
    stream = io.StringIO()
    writer.dump(document, stream)
    return _spaced(stream.getvalue())


def commented(data: dict[str, Any]) -> CommentedMap:
    """Return a document to which comments can be added; its texts are quoted where they must."""

    def made(value: Any) -> Any:
        if isinstance(value, dict):
            return CommentedMap({key: made(inner) for key, inner in value.items()})
        if isinstance(value, list):
            return [made(inner) for inner in value]
        if isinstance(value, str) and "\n" in value:
            return LiteralScalarString(value)
        if isinstance(value, str) and not _plain(value):
            return DoubleQuotedScalarString(value)
        return value

    document = made(data)
    if not isinstance(document, CommentedMap):
        raise TypeError(type(document))
    return document


def _plain(text: str) -> bool:
    """Return whether text may stand unquoted in YAML: no number, no keyword of YAML 1.1."""
    words = ("true", "false", "null", "yes", "no", "on", "off", "none", "auto", "~", "")
    return text == "auto" or (
        text.lower() not in words and not re.fullmatch(r"[-+.\d_eExX]+", text)
    )


def _spaced(text: str) -> str:
    """An empty line before each section, as our own recipes have it."""
    lines: list[str] = []
    for line in text.splitlines():
        opens = re.fullmatch(r"[a-z_]+:( *#.*)?", line)
        after_section = lines and lines[-1].startswith((" ", "-"))
        if lines and (opens or (after_section and not line.startswith((" ", "-")))):
            lines.append("")
        lines.append(line)
    return "\n".join(lines) + "\n"
