"""Recipes by name or path, read and checked."""

from __future__ import annotations

from pathlib import Path

from spark_cluster.config import recipe_checks
from spark_cluster.config.allowances import NOTHING, Allowances, Allowed
from spark_cluster.config.image_build import Build
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_schema import Patch
from spark_cluster.config.schema import validate
from spark_cluster.config.yamlfile import Problem, load
from spark_cluster.loader.project import Project
from spark_cluster.loader.registries import is_of_registry

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
    # A recipe of a registry has no files of its own here, and the project's are not its.
    own = not is_of_registry(path)
    if path.absolute().parent == project.shipped / "recipes":
        allow += OF_SHIPPED
    allowed = Allowed(path, project.folder, allow) if own else Allowed(user=allow)
    return recipe.with_files(allowed, model=model, patches=patches, image=image)


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
