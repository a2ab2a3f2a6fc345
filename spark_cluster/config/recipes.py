"""Recipes by name or path, read and checked."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from spark_cluster.config import recipe_checks, registries
from spark_cluster.config.allowances import NOTHING, Allowances
from spark_cluster.config.image_build import Build
from spark_cluster.config.project import Project
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_schema import Patch
from spark_cluster.config.registries import is_of_registry
from spark_cluster.config.schema import validate
from spark_cluster.config.yamlfile import Problem, load
from spark_cluster.errors import SparkClusterError

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
    problems = recipe_checks.check(recipe)
    if recipe.name != path.stem:
        message = f"found '{recipe.name}', expected '{path.stem}', the name of the file"
        problems.insert(0, Problem(("name",), message))
    if problems:
        raise source.invalid(problems)
    folder = path.absolute().parent
    patches = [_absolute(patch, folder) for patch in recipe.patches]
    directory = recipe.model.directory and folder / recipe.model.directory.expanduser()
    model = recipe.model.model_copy(update={"directory": directory})
    image = recipe.image.model_copy(update={"build": _build(recipe.image.build, folder)})
    if folder == project.shipped / "recipes":
        allow += OF_SHIPPED
    if not is_of_registry(path):  # which has no files here, and the project's are not its
        allow += Allowances(folders=(folder, project.folder))
    return recipe.with_allowances(allow, model=model, patches=patches, image=image)


def _build(build: Build | None, folder: Path) -> Build | None:
    """A build whose files have absolute paths."""
    if build is None:
        return None
    steps = []
    for step in build.steps:
        files = [
            file.model_copy(update={"file": str(folder / Path(file.file).expanduser())})
            for file in step.files
        ]
        steps.append(step.model_copy(update={"files": files}))
    return build.model_copy(update={"steps": steps})


def _absolute(patch: Patch, folder: Path) -> Patch:
    """A patch whose file is absolute when it is the laptop's."""
    if patch.origin == "model":
        return patch
    return patch.model_copy(update={"file": str(folder / Path(patch.file).expanduser())})


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
    words = [word for part in text for word in _words(part)]
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


def _words(text: str) -> list[str]:
    return re.findall(r"[^\s,;]+", text.casefold())


def _worth(word: str, key: str, text: str) -> int:
    """Letters and digits count, and what stands between them does not: gpt-oss is gptoss."""
    plain, wanted = _plain(text), _plain(word)
    if not wanted or wanted not in plain:
        return 0
    whole = wanted in {_plain(part) for part in re.split(r"[\s/_-]+", text.casefold())}
    return WEIGHTS[key] * (2 if whole else 1)


def _plain(text: str) -> str:
    return re.sub(r"[^a-z0-9.]", "", text.casefold())
