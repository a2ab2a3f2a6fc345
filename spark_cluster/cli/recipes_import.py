"""`recipes import`: a recipe of ours from a command line or from another tool's recipe."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.console import mark, painted, styled
from spark_cluster.cli.hub_option import hub, offline_option
from spark_cluster.errors import SparkClusterError, UsageError

if TYPE_CHECKING:
    from spark_cluster.importers.importer import Choice
    from spark_cluster.importers.result import Imported
    from spark_cluster.importers.source import Source
    from spark_cluster.loader.project import Project
    from spark_cluster.models.hub import Hub

_STDIN = "standard input"
_LARGEST = 2 << 20
"""Bytes that are taken from standard input; the reader refuses half of it already."""


@click.command("import")
@click.argument("file", required=False)
@click.option("--command", "line", metavar="TEXT", help="A command line instead of a file.")
@click.option(
    "-o",
    "--output",
    metavar="FILE|DIR",
    help="File or folder to write to (default: recipes/NAME.yaml).",
)
@click.option("--name", metavar="NAME", help="Name of the recipe (default: from what it serves).")
@click.option(
    "--variant",
    metavar="V",
    help="Variant of a vllm-project/recipes file (default: default), or guide: the command for a "
    "DGX Spark in its guide.",
)
@click.option(
    "--feature",
    "features",
    metavar="F",
    multiple=True,
    help="Feature of a vllm-project/recipes file: F on, F=MODE, or no-F off; repeatable.",
)
@click.option("--model", metavar="ORG/NAME", help="The repository, when the source has a folder.")
@click.option("--image", metavar="REF", help="The container image, when the source has none.")
@click.option(
    "--mods",
    metavar="FOLDER",
    multiple=True,
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Folder with the mods that FILE names, such as a checkout of its registry; repeatable.",
)
@click.option("--force", is_flag=True, help="Replace an existing recipe.")
@offline_option
@click.pass_context
def command(
    ctx: click.Context,
    *,
    file: str | None,
    line: str | None,
    output: str | None,
    name: str | None,
    variant: str | None,
    features: tuple[str, ...],
    model: str | None,
    image: str | None,
    mods: tuple[Path, ...],
    force: bool,
    offline: bool,
) -> None:
    """Make a recipe from FILE ('-' for standard input), or from a command line.

    FILE is a recipe of sparkrun or spark-vllm-docker, a model file of vllm-project/recipes (as it
    is for DGX Sparks), a text with `docker run ...` or `vllm serve ...`, or @REGISTRY/RECIPE.
    Nothing in it is executed. What a recipe cannot hold is listed with the reason.
    """
    from spark_cluster.importers.recipe_text import write

    app: App = ctx.obj
    folder, name = _target(app, output, name)
    choice = _choice(variant, features)
    given: dict[str, Any] = {"name": name, "model": model, "image": image, "mods": mods}
    if file is not None and line is None and file.startswith("@"):
        from spark_cluster.registries import reference

        imported = reference.imported(file, app.project.folder, choice, **given)
    else:
        imported = write(_source(file, line, choice), **given)
    path = folder / f"{imported.name}.yaml"
    _refuse(app, path, named=name is not None, force=force)
    _refuse_folders(folder, imported, force=force)
    _save(app, path, imported)
    imported.notes.append(about_model(path, app.project, hub(offline=offline)))
    if app.as_json:
        app.print_json(_document(path, imported))
    else:
        _show(app, path, imported)


def _choice(variant: str | None, features: tuple[str, ...]) -> Choice:
    from spark_cluster.importers.importer import Choice

    return Choice(variant or "default", features)


def _source(file: str | None, line: str | None, choice: Choice) -> Source:
    from spark_cluster.importers.command_file import read_text
    from spark_cluster.importers.files import read_file

    if (file is None) == (line is None):
        raise UsageError(
            "give either a file or --command" if file is None else "both a file and --command",
            hint="spark-cluster recipes import FILE, or --command 'docker run ...'",
        )
    if line is not None:
        return read_text(line)
    if file == "-":
        return _from_stdin(choice)
    return read_file(Path(str(file)).expanduser(), choice)


def _from_stdin(choice: Choice) -> Source:
    """Standard input, through a file, as its reader names lines of a file."""
    from spark_cluster.importers.files import read_file

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stdin"
        path.write_bytes(sys.stdin.buffer.read(_LARGEST))
        try:
            source = read_file(path, choice)
        except SparkClusterError as error:
            texts = [text.replace(str(path), _STDIN) for text in (error.message, error.where)]
            raise type(error)(texts[0], where=texts[1], hint=error.hint) from None
    source.title = "" if source.title == "stdin" else source.title
    source.origin = source.origin.replace("stdin", _STDIN)
    return source


def _target(app: App, output: str | None, name: str | None) -> tuple[Path, str | None]:
    """The folder to write to, and the recipe's name where it is said."""
    if name is not None and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise UsageError(
            f"--name: found '{name}', expected letters, digits, '_', '-' and '.'",
            hint="folders go into --output",
        )
    if output is None:
        return app.project.folder / "recipes", name
    path = Path(output).expanduser()
    if path.suffix != ".yaml":
        return path, name
    if name is not None and name != path.stem:
        raise UsageError(
            f"--name {name} and --output {path.name}: a recipe has the name of its file",
            hint="leave one of them out",
        )
    return path.parent, path.stem


def _refuse(app: App, path: Path, *, named: bool, force: bool) -> None:
    """Nothing is replaced, and no shipped recipe hidden, unless the user says so."""
    from spark_cluster.config.yamlfile import shown

    hint = "choose another --name, or replace it with --force"
    if force:
        return
    if path.exists():
        raise UsageError(f"{shown(path)} exists", hint=hint)
    if not named and path.stem in app.project.list("recipes"):
        raise UsageError(
            f"there is a recipe {path.stem} already, which this one would hide",
            hint=f"choose another --name, or confirm with --name {path.stem}",
        )


def _refuse_folders(folder: Path, imported: Imported, *, force: bool) -> None:
    """No folder of files is replaced either, unless the user says so."""
    from spark_cluster.config.yamlfile import shown

    for top in {name.partition("/")[0] for name in imported.files}:
        if (folder / top).exists() and not force:
            hint = "choose another --name, or replace it with --force"
            raise UsageError(f"{shown(folder / top)} exists", hint=hint)


def _save(app: App, path: Path, imported: Imported) -> None:
    """Write to a temporary file, and rename it after our own reader has accepted it."""
    from spark_cluster.loader.recipes import load_recipe

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".import-", dir=path.parent) as folder:
            staged = Path(folder) / path.name
            staged.write_text(imported.text, encoding="utf-8")
            load_recipe(staged, app.project)
            _place_files(Path(folder), path.parent, imported.files)
            staged.chmod(0o644)
            staged.replace(path)
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from None


def _place_files(staging: Path, folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a recipe, and then rename the folder that they are in."""
    for name, content in files.items():
        place = staging / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(content)
    for top in {name.partition("/")[0] for name in files}:
        if (folder / top).exists():
            shutil.rmtree(folder / top)
        (staging / top).replace(folder / top)


def _document(path: Path, imported: Imported) -> dict[str, Any]:
    return {
        "ok": True,
        "file": str(path),
        "name": imported.name,
        "kind": imported.kind,
        "kept": imported.kept,
        "carried": [{"what": one.what, "where": one.where} for one in imported.carried],
        "left_out": [{"what": one.what, "why": one.why} for one in imported.left_out],
        "not_carried_over": [one.entry for one in imported.left_out if one.consequence],
        "offers": [{"option": one.option, "what": one.what} for one in imported.offers],
        "notes": imported.notes,
        "to_do": imported.to_do,
        "files": [str(path.parent / name) for name in imported.files],
    }


def _show(app: App, path: Path, imported: Imported) -> None:
    from spark_cluster.config.yamlfile import shown

    console = app.console
    console.print(styled("{} {} → {}", mark("ok"), imported.kind, shown(path)), soft_wrap=True)
    if imported.kept:
        console.print(styled("\n[bold]kept as it is[/]  {}", ", ".join(imported.kept)))
    _table(app, ("became", "in the recipe"), [(one.what, one.where) for one in imported.carried])
    _table(app, ("left out", "why"), [(one.what, one.why) for one in imported.left_out])
    console.print()
    for note in imported.notes:
        console.print(styled("[dim]note[/] {}", note))
    for offer in imported.offers:
        console.print(styled("[cyan]for a DGX Spark[/] {}: {}", offer.option, offer.what))
    for left in imported.left_out:
        if left.blocks:
            told = (left.what, left.consequence)
            console.print(styled("[red]it cannot work without[/] {}: {}", *told))
    for task in imported.to_do:
        console.print(styled("[yellow]to do[/] {}", task))
    listed = path.resolve().parent == (app.project.folder / "recipes").resolve()
    target = imported.name if listed else shown(path)
    console.print(f"Next: spark-cluster lint {target}", soft_wrap=True)


def _table(app: App, titles: tuple[str, str], rows: list[tuple[str, str]]) -> None:
    from rich.table import Table

    if not rows:
        return
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column(titles[0], overflow="fold", ratio=1)
    table.add_column(titles[1], overflow="fold", ratio=1)
    for what, where in rows:
        table.add_row(what, painted(where, "dim"))
    app.console.print()
    app.console.print(table)


def about_model(path: Path, project: Project, hub: Hub) -> str:
    """Return one line about the model of a recipe; what is read of it is kept for `plan`."""
    from spark_cluster.loader.recipes import load_recipe
    from spark_cluster.models.memory import GIB
    from spark_cluster.planning.speed.of_recipe import serving_of

    try:
        recipe = load_recipe(path, project)
        serving = serving_of(recipe, recipe.tensor_parallel.min, project.folder, hub=hub)
        weights = serving.weights
    except SparkClusterError as error:
        return f"the model's size is not known: {error.message}"
    source = "counted from its tensors" if weights.counted else "computed from its shape"
    size = weights.memory_bytes() / GIB
    return f"{recipe.model.name}: {serving.quantization}, {size:.1f} GiB of weights ({source})"
