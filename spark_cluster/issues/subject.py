"""What `lint` looks at: a recipe, another tool's file or a command line, and how it is mended."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from spark_cluster.allowances import NOTHING, Allowances
from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.issues import fixing_command, fixing_recipe, lint
from spark_cluster.issues.finding import Edit, Finding, ordered
from spark_cluster.launch import Launch, of_recipe
from spark_cluster.userfiles.yamlfile import load, shown

if TYPE_CHECKING:
    from spark_cluster.planning.geometry import Geometry
    from spark_cluster.project import Project

YAML = (".yaml", ".yml", ".json")

ROUNDS = 5
"""A fix may bring another issue to light; more rounds than that mean that two contradict."""


@dataclass(frozen=True)
class Subject:
    """Something that can be looked at, and perhaps mended.

    Attributes:
        title: how it is called.
        text: as it is written; empty for what cannot be mended.
        launches: what the text starts, by tensor-parallel size. Raises InvalidFile or UsageError
            when it is wrong.
        fixed: the text after edits.
        can: whether it holds what an edit changes.
        path: the file it stands in.
        folder: where the model's files are on this machine, when that is known.
        variables: of this machine's environment, which a recipe asks for.
    """

    title: str
    text: str
    launches: Callable[[str], list[Launch]]
    fixed: Callable[[str, list[Edit]], str] = field(default=lambda text, _edits: text)
    can: Callable[[Edit], bool] = field(default=lambda _edit: False)
    path: Path | None = None
    folder: Path | None = None
    variables: tuple[str, ...] = ()


@dataclass(frozen=True)
class Fixed:
    """A text after the fixes: what was mended, what remains."""

    text: str
    mended: list[Finding]
    remaining: list[Finding]


def of_command(text: str, tp: int | None) -> Subject:
    """A pasted command line."""
    from spark_cluster.importing import commandline

    def launches(current: str) -> list[Launch]:
        launch = commandline.parse(current)
        return [launch if tp is None else replace(launch, tp=tp, nodes=max(tp, launch.nodes))]

    def fixed(current: str, edits: list[Edit]) -> str:
        return fixing_command.fixed(current, edits, launches(current)[0])

    (launch,) = launches(text)
    return Subject(
        launch.model, text, launches, fixed, lambda edit: fixing_command.can(edit, launch)
    )


def of_target(name: str, project: Project, tp: int | None, allow: Allowances = NOTHING) -> Subject:
    """A recipe by name or path, or a file of another tool.

    Args:
        allow: what the user allows the recipe.

    Raises:
        Refused: the recipe has others sent.
        UsageError: there is no recipe of that name, or it does not do this size.
        InvalidFile: the file is none that can be read.
    """
    path = project.resolve("recipes", name)
    if _is_ours(path):
        return _of_recipe(path, project, tp, allow)
    from spark_cluster import importing

    launch = importing.read(path).launch
    if path.suffix.lower() not in YAML:
        with contextlib.suppress(UsageError):
            return replace(of_command(path.read_text(encoding="utf-8"), tp), path=path)
    launch = launch if tp is None else replace(launch, tp=tp, nodes=tp)
    return Subject(path.name, "", lambda _text: [launch], path=path)


def _is_ours(path: Path) -> bool:
    if path.suffix.lower() not in YAML[:2]:
        return False
    try:
        data = load(path, "recipe").data
    except InvalidFile:
        return True  # the reader of recipes says best what is wrong
    return isinstance(data.get("model"), dict) or isinstance(data.get("image"), dict)


def _of_recipe(path: Path, project: Project, tp: int | None, allow: Allowances) -> Subject:
    from spark_cluster.allowances import mounts_must_be_allowed
    from spark_cluster.laptop_files import files_must_be_allowed
    from spark_cluster.recipe import load_recipe

    recipe = load_recipe(path, project, allow)
    files_must_be_allowed(recipe)
    mounts_must_be_allowed(recipe)
    sizes = recipe.tensor_parallel
    wanted = range(sizes.min, sizes.max + 1) if tp is None else (tp,)

    def launches(current: str) -> list[Launch]:
        with tempfile.TemporaryDirectory() as folder:
            copy = Path(folder) / path.name
            copy.write_text(current, encoding="utf-8")
            read = load_recipe(copy, project)
        return [of_recipe(read, size) for size in wanted]

    return Subject(
        recipe.name,
        path.read_text(encoding="utf-8-sig"),
        launches,
        lambda current, edits: fixing_recipe.fixed(current, edits, path.stem),
        fixing_recipe.can,
        path,
        recipe.model.directory,
        tuple(dict.fromkeys(reference.env for reference in recipe.secret_env.values())),
    )


def findings(subject: Subject, text: str, project: Project) -> list[Finding]:
    """What is found in the text, over all sizes, each issue once."""
    launches = subject.launches(text)
    found: dict[str, Finding] = {}
    for launch in launches:
        for finding in lint(launch, _geometry(launch, subject, project)):
            if finding.id not in found:
                only = len(launches) > 1 and launch.tp > launches[0].tp
                at = f" (at --tp {launch.tp})" if only else ""
                found[finding.id] = replace(finding, found=finding.found + at)
    return ordered(list(found.values()))


def fix(subject: Subject, project: Project) -> Fixed:
    """The text with everything mended that can be, errors and warnings only."""
    text, mended = subject.text, dict[str, Finding]()
    for _ in range(ROUNDS):
        found = findings(subject, text, project)
        todo = [f for f in found if f.severity != "info" and f.edit is not None]
        todo = [f for f in todo if f.edit and subject.can(f.edit) and f.id not in mended]
        if not todo:
            break
        mended |= {f.id: f for f in todo}
        text = subject.fixed(text, list(dict.fromkeys(f.edit for f in todo if f.edit is not None)))
    remaining = findings(subject, text, project)
    still = {finding.id for finding in remaining}
    return Fixed(text, [f for f in mended.values() if f.id not in still], remaining)


def write(path: Path, text: str) -> None:
    """Writes a file beside its place and renames it.

    Raises:
        InvalidFile: it cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(text, encoding="utf-8")
        if path.exists():
            beside.chmod(path.stat().st_mode & 0o7777)
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise InvalidFile(f"cannot be written: {error.strerror}", where=shown(path)) from None


def _geometry(launch: Launch, subject: Subject, project: Project) -> Geometry | None:
    """The model's shape, when it is known."""
    from spark_cluster.planning import geometry

    with contextlib.suppress(UsageError):
        if subject.folder is not None and (subject.folder / "config.json").is_file():
            return geometry.find(subject.folder)
        return geometry.find(launch.model, project.folder, base=launch.base)
    return None
