"""Recipes by name or path, read, checked, searched, and saved with changes."""

from __future__ import annotations

import io
import re
import shutil
import tempfile
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

from spark_cluster.config import registries
from spark_cluster.config.extension import NOTHING, Allowances
from spark_cluster.config.launch import options_text
from spark_cluster.config.project import Project
from spark_cluster.config.recipe import Recipe, recipe_problems
from spark_cluster.config.registries import is_of_registry
from spark_cluster.config.schema import validate
from spark_cluster.config.yamlfile import Problem, load
from spark_cluster.errors import SparkClusterError, UsageError, naming

OF_SHIPPED = Allowances(build=True, build_network=True)
"""What recipes that come with the program need no permission for: its roles run as root, too."""


def load_recipe(name: str | Path, project: Project, allow: Allowances = NOTHING) -> Recipe:
    """Read a recipe by name or path, with absolute paths of `model.directory`, patches and steps.

    Args:
        allow: what the user allows it, next to the files of its own and the project's folder.

    Raises:
        UsageError: there is no recipe of that name.
        InvalidFile: the file does not exist or is wrong, with every problem and its line.
    """
    path = project.resolve("recipes", name)
    source = load(path, "recipe")
    recipe = validate(Recipe, source)
    problems = recipe_problems(recipe)
    if recipe.name != path.stem:
        message = f"found '{recipe.name}', expected '{path.stem}', the name of the file"
        problems.insert(0, Problem(("name",), message))
    if problems:
        raise source.invalid(problems)
    folder = path.absolute().parent
    if folder == project.shipped / "recipes":
        allow += OF_SHIPPED
    if not is_of_registry(path):  # which has no files here, and the project's are not its
        allow += Allowances(folders=(folder, project.folder))
    return recipe.with_allowances(allow)


WEIGHTS: Mapping[str, int] = {
    "name": 8,
    "model": 5,
    "quantization": 5,
    "tags": 4,
    "base": 3,
    "description": 2,
}
"""Worth of a word by the field that has it; a whole word counts twice."""

Origin = Literal["shipped", "yours", "registry"]


@dataclass(frozen=True)
class RecipeFile:
    """A file of the folders `recipes/`.

    Attributes:
        own: it is the user's own, not a shipped one.
        recipe: None when the file is wrong; then `error` says why.
    """

    name: str
    path: Path
    own: bool
    recipe: Recipe | None = None
    error: SparkClusterError | None = None


def recipe_files(project: Project) -> Iterator[RecipeFile]:
    """Every recipe by name, the user's own before ours; a broken file is one like others."""
    for name, path in project.list("recipes").items():
        own = not path.is_relative_to(project.shipped / "recipes")
        try:
            yield RecipeFile(name, path, own, load_recipe(path, project))
        except SparkClusterError as error:
            yield RecipeFile(name, path, own, error=error)


@dataclass(frozen=True)
class FoundRecipe:
    """A recipe that can be found.

    Attributes:
        reference: what `plan` and `up` take.
        fields: what words are looked for in, by the keys of `WEIGHTS`.
    """

    reference: str
    origin: Origin
    fields: Mapping[str, str]

    def score(self, words: Sequence[str]) -> int:
        """Return how well it fits; 0 when one of the words is nowhere."""
        total = 0
        for word in words:
            worth = [_worth(word, key, text) for key, text in self.fields.items()]
            if not any(worth):
                return 0
            total += max(worth) + sum(worth) // 10
        return total


def search_recipes(text: Sequence[str], project: Project) -> list[FoundRecipe]:
    """Return the recipes that have all the words, the best first; all without a word.

    Raises:
        InvalidFile, Refused: the project's list of registries is wrong, or others can write it.
    """
    words = [word for part in text for word in re.findall(r"[^\s,;]+", part.casefold())]
    scored = [(one.score(words), one) for one in _searched(project)]
    order = {"yours": 0, "shipped": 1, "registry": 2}
    found = [(score, one) for score, one in scored if score or not words]
    found.sort(key=lambda pair: (-pair[0], order[pair[1].origin], pair[1].reference))
    return [one for _, one in found]


def fields_of(recipe: Recipe) -> dict[str, str]:
    """The texts of a recipe that are searched."""
    return {
        "name": recipe.name,
        "model": recipe.model.name,
        "quantization": recipe.model.quantization or "",
        "tags": " ".join(recipe.tags),
        "base": recipe.model.base or "",
        "description": recipe.description,
    }


def _searched(project: Project) -> Iterator[FoundRecipe]:
    for file in recipe_files(project):
        fields = fields_of(file.recipe) if file.recipe else {"name": file.name}
        yield FoundRecipe(file.name, "yours" if file.own else "shipped", fields)
    for registry in registries.registries(project.folder):
        revision = registries.pinned_revision(registry, project.folder)
        index = registries.index_of(registry, revision) if revision else None
        for one in index.recipes if index else ():
            if not one.error:
                fields = {**one.model_dump(include=set(WEIGHTS)), "tags": " ".join(one.tags)}
                yield FoundRecipe(f"@{registry.name}/{one.name}", "registry", fields)


def _worth(word: str, key: str, text: str) -> int:
    """Letters and digits count, and what stands between them does not: gpt-oss is gptoss."""
    plain, wanted = _plain(text), _plain(word)
    if not wanted or wanted not in plain:
        return 0
    whole = wanted in {_plain(part) for part in re.split(r"[\s/_-]+", text.casefold())}
    return WEIGHTS[key] * (2 if whole else 1)


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", text.casefold())


# A recipe made of another one and what the command line changes in it, in the project's folder.

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
    with naming(UsageError, f"{path} cannot be written"):
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


def folders_of(files: Iterable[str]) -> set[str]:
    """Return the folders that a recipe's files are in."""
    return {name.partition("/")[0] for name in files}


def text(recipe: Recipe, name: str) -> str:
    """Return the text of the file."""
    data: dict[str, Any] = recipe.model_dump(mode="json", exclude_unset=True, exclude_none=True)
    data = {"name": name, **{key: value for key, value in data.items() if key != "name"}}
    full = {key: value for key, value in data.items() if value not in ([], {})}
    changes = options_text(recipe.overrides)
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
        if isinstance(value, str) and not _unquoted(value):
            return DoubleQuotedScalarString(value)
        return value

    document = made(data)
    if not isinstance(document, CommentedMap):
        raise TypeError(type(document))
    return document


def _unquoted(text: str) -> bool:
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
