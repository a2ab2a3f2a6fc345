"""The target of `lint`: a recipe, another tool's file or a command line, and how it is fixed."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from spark_cluster.config import image_build
from spark_cluster.config.launch import Launch, of_recipe
from spark_cluster.config.recipe_schema import NotCarriedOver
from spark_cluster.config.trust import NOTHING, Allowances
from spark_cluster.config.yamlfile import load, shown
from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.importers import commandline
from spark_cluster.issues import fix_command, fix_recipe
from spark_cluster.issues.match import Edit, KnownIssueMatch, ordered
from spark_cluster.issues.rules import lint
from spark_cluster.models.shape import Geometry
from spark_cluster.node.durable import write_file

if TYPE_CHECKING:
    from spark_cluster.config.project import Project
    from spark_cluster.models.hub.lookup import Hub

YAML = (".yaml", ".yml", ".json")

ROUNDS = 5
"""A fix may bring another issue to light; more rounds than that mean that two contradict."""


@dataclass(frozen=True)
class LintTarget:
    """Something that can be checked, and perhaps fixed.

    Attributes:
        title: how it is called.
        text: as it is written; empty for what cannot be fixed.
        launches: what the text starts, by tensor-parallel size. Raises InvalidFile or UsageError
            when it is wrong.
        fixed: the text after edits.
        can: whether it holds what an edit changes.
        path: the file it stands in.
        folder: where the model's files are on this machine, when that is known.
        variables: of this machine's environment, which a recipe asks for.
        builds: what to know of the scripts that change a recipe's image.
        not_carried_over: what an imported recipe lacks of its source.
    """

    title: str
    text: str
    launches: Callable[[str], list[Launch]]
    fixed: Callable[[str, list[Edit]], str] = field(default=lambda text, _edits: text)
    can: Callable[[Edit], bool] = field(default=lambda _edit: False)
    path: Path | None = None
    folder: Path | None = None
    variables: tuple[str, ...] = ()
    builds: tuple[str, ...] = ()
    not_carried_over: tuple[NotCarriedOver, ...] = ()


@dataclass(frozen=True)
class Fixed:
    """A text after the fixes, with what was fixed and what remains."""

    text: str
    fixed: list[KnownIssueMatch]
    remaining: list[KnownIssueMatch]


def of_command(text: str, tp: int | None) -> LintTarget:
    """Return the target for a pasted command line."""

    def launches(current: str) -> list[Launch]:
        launch = commandline.parse(current)
        return [launch if tp is None else launch.at_size(tp)]

    def fixed(current: str, edits: list[Edit]) -> str:
        return fix_command.fixed(current, edits, launches(current)[0])

    (launch,) = launches(text)
    return LintTarget(
        launch.model, text, launches, fixed, lambda edit: fix_command.can(edit, launch)
    )


def changed(target: LintTarget, change: Callable[[Launch], Launch]) -> LintTarget:
    """Return the target with changed launches, which can be checked and not fixed in the text."""
    return replace(
        target, text="", launches=lambda _text: [*map(change, target.launches(target.text))]
    )


def of_target(
    name: str, project: Project, tp: int | None, allow: Allowances = NOTHING
) -> LintTarget:
    """Return the target for a recipe by name or path, or a file of another tool.

    Args:
        allow: what the user allows the recipe.

    Raises:
        Refused: the recipe has others sent.
        UsageError: there is no recipe of that name, or it does not do this size.
        InvalidFile: the file cannot be read as any of the known formats.
    """
    path = project.resolve("recipes", name)
    if _is_ours(path):
        return _of_recipe(path, project, tp, allow)
    from spark_cluster.importers.files import read_file

    launch = read_file(path).launch
    if path.suffix.lower() not in YAML:
        with contextlib.suppress(UsageError):
            return replace(of_command(path.read_text(encoding="utf-8"), tp), path=path)
    launch = launch if tp is None else launch.at_size(tp)
    return LintTarget(path.name, "", lambda _text: [launch], path=path)


def _is_ours(path: Path) -> bool:
    if path.suffix.lower() not in YAML[:2]:
        return False
    try:
        data = load(path, "recipe").data
    except InvalidFile:
        return True  # the reader of recipes says best what is wrong
    return isinstance(data.get("model"), dict) or isinstance(data.get("image"), dict)


def _of_recipe(path: Path, project: Project, tp: int | None, allow: Allowances) -> LintTarget:
    from spark_cluster.config.recipe_settings import files_must_be_allowed, mounts_must_be_allowed
    from spark_cluster.config.recipes import load_recipe

    recipe = load_recipe(path, project, allow)
    files_must_be_allowed(recipe)
    mounts_must_be_allowed(recipe)
    wanted = recipe.tensor_parallel.usual if tp is None else (tp,)

    def launches(current: str) -> list[Launch]:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / path.name
            copy.write_text(current, encoding="utf-8")
            read = load_recipe(copy, project)
        return [of_recipe(read, size) for size in wanted]

    return LintTarget(
        recipe.name,
        path.read_text(encoding="utf-8-sig"),
        launches,
        lambda current, edits: fix_recipe.fixed(current, edits, path.stem),
        fix_recipe.can,
        path,
        recipe.model.directory,
        tuple(dict.fromkeys(reference.env for reference in recipe.secret_env.values())),
        tuple(image_build.remarks(recipe.image.build, recipe.allowances)),
        tuple(recipe.not_carried_over),
    )


def findings(
    target: LintTarget, text: str, project: Project, hub: Hub | None = None
) -> list[KnownIssueMatch]:
    """Return the known issues of the text, over all sizes, each once.

    Args:
        hub: where the model is looked up; None: what is kept on this machine.
    """
    launches = target.launches(text)
    found: dict[str, KnownIssueMatch] = {}
    for launch in launches:
        for finding in lint(launch, _geometry(launch, target, project, hub)):
            if finding.id not in found:
                only = len(launches) > 1 and launch.tp > launches[0].tp
                at = f" (at --tp {launch.tp})" if only else ""
                found[finding.id] = replace(finding, found=finding.found + at)
    return ordered(list(found.values()))


def fix(target: LintTarget, project: Project, hub: Hub | None = None) -> Fixed:
    """Return the text with every error and warning fixed that can be."""
    text, done = target.text, dict[str, KnownIssueMatch]()
    for _ in range(ROUNDS):
        found = findings(target, text, project, hub)
        todo = [f for f in found if f.severity != "info" and f.edit is not None]
        todo = [f for f in todo if f.edit and target.can(f.edit) and f.id not in done]
        if not todo:
            break
        done |= {f.id: f for f in todo}
        text = target.fixed(text, list(dict.fromkeys(f.edit for f in todo if f.edit is not None)))
    remaining = findings(target, text, project)
    still = {finding.id for finding in remaining}
    return Fixed(text, [f for f in done.values() if f.id not in still], remaining)


def write(path: Path, text: str) -> None:
    """Write a text in place of a file, with its mode; into what is no file, such as /dev/stdout.

    Raises:
        InvalidFile: it cannot be written.
    """
    try:
        if path.exists() and not path.is_file():
            path.write_text(text, encoding="utf-8")
            return
        os.umask(mask := os.umask(0o077))
        mode = path.stat().st_mode & 0o7777 if path.exists() else 0o666 & ~mask
        write_file(path, text.encode(), mode)
    except OSError as error:
        raise InvalidFile(f"cannot be written: {error.strerror}", where=shown(path)) from None


def _geometry(
    launch: Launch, target: LintTarget, project: Project, hub: Hub | None
) -> Geometry | None:
    """Return the model's shape, when it is known, and its size too."""
    from spark_cluster.models.find import find

    with contextlib.suppress(UsageError):
        if target.folder is not None and (target.folder / "config.json").is_file():
            found = find(target.folder)
        else:
            found = find(launch.model, project.folder, base=launch.base, hub=hub)
        return found if found.stored is not None or not found.not_understood else None
    return None
