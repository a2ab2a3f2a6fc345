"""Recipes of others: `recipes import` makes one of ours from a command line or another tool's
recipe, and `recipes update` shows what has changed in the registries, and takes it when agreed.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import click
from rich.text import Text

from spark_cluster.cli.app import App
from spark_cluster.cli.console import mark, painted, plain_table, styled
from spark_cluster.cli.options import DeclaredCommand, Offline, Overriding, hub
from spark_cluster.cli.serving import changed, must_be_given
from spark_cluster.config import registries
from spark_cluster.config.launch import options_text
from spark_cluster.config.project import Project
from spark_cluster.config.recipes import NAME, folders_of, load_recipe, write_recipe
from spark_cluster.config.recipes import save as save_recipe
from spark_cluster.config.schema import ErrorDocument, as_json
from spark_cluster.config.yamlfile import shown
from spark_cluster.errors import SparkClusterError, UsageError
from spark_cluster.importers import commandline, kits, snapshot
from spark_cluster.importers.fetching import Update, fetched_kit, is_url, look, take
from spark_cluster.importers.files import read_file, read_given, write
from spark_cluster.importers.importer import Choice, Imported, Source
from spark_cluster.models.lookup import Hub
from spark_cluster.models.memory_share import GIB
from spark_cluster.node.output import counted
from spark_cluster.plan.serving import serving_of

_STDIN = "standard input"
_LARGEST = 2 << 20
"""Bytes that are taken from standard input; the reader refuses half of it already."""

_SHOWN = 40
"""Names of each kind of change that are shown without --verbose."""


@click.command("import", cls=DeclaredCommand)
def import_(
    app: App,
    *,
    file: str | None,
    line: str | None,
    output: str | None,
    name: str | None,
    variant: str | None,
    features: tuple[str, ...],
    model: str | None,
    image: str | None,
    mods: tuple[Annotated[Path, click.Path(path_type=Path, exists=True, file_okay=False)], ...],
    force: bool,
    offline: Offline,
) -> None:
    """Make a recipe from FILE ('-' for standard input), or from a command line.

    FILE is a recipe of sparkrun or spark-vllm-docker, a model file of vllm-project/recipes (as it
    is for DGX Sparks), a text with `docker run ...` or `vllm serve ...`, or @REGISTRY/RECIPE. A kit
    is imported by its compose file, start script, README or folder, or by the URL of its git
    repository.
    Nothing in it is executed. What a recipe cannot hold is listed with the reason.

    Args:
        line (--command TEXT): A command line instead of a file.
        output (-o, --output FILE|DIR): File or folder to write to (default: recipes/NAME.yaml).
        name (NAME): Name of the recipe (default: from what it serves).
        variant (V): Variant of a vllm-project/recipes file (default: default), or guide: the
            command for a DGX Spark in its guide. Of a kit: the service, file or file of variables
            that is meant.
        features (--feature F): Feature of a vllm-project/recipes file: F on, F=MODE, or no-F off;
            repeatable.
        model (ORG/NAME): The repository, when the source has a folder.
        image (REF): The container image, when the source has none.
        mods (FOLDER): Folder with the mods that FILE names, such as a checkout of its registry;
            repeatable.
        force: Replace an existing recipe.
    """
    folder, name = _target(app, output, name)
    choice = Choice(variant or "default", features)
    listed = app.project.list("recipes").items()
    given: dict[str, Any] = {"name": name, "model": model, "image": image, "mods": mods}
    given["taken"] = {one for one, path in listed if path.resolve().parent != folder.resolve()}
    if file is not None and line is None and file.startswith("@"):
        imported = snapshot.imported(file, app.project.folder, choice, **given)
    elif file is not None and line is None and is_url(file):
        imported = _fetched(file, choice, given)
    else:
        imported = write(_source(file, line, choice), **given)
    path = folder / f"{imported.name}.yaml"
    if not force:
        _refuse(app, path, imported, named=name is not None)
    write_recipe(path, imported.text, app.project, imported.files)
    imported.notes.append(_about_model(path, app.project, hub(offline=offline)))
    if app.as_json:
        files = [str(path.parent / name) for name in imported.files]
        app.print_json({"ok": True, "file": str(path), **as_json(imported), "files": files})
    else:
        _show(app, path, imported)


def _fetched(url: str, choice: Choice, given: dict[str, Any]) -> Imported:
    """Import a kit from its repository; messages name its files as they are there."""
    with tempfile.TemporaryDirectory() as folder:
        root, origin = fetched_kit(url, Path(folder))
        try:
            return write(kits.read(root, choice, read_given, origin), **given)
        except SparkClusterError as error:
            raise _renamed(error, f"{folder}/", "") from None


def _renamed(error: SparkClusterError, path: str, name: str) -> SparkClusterError:
    """Return the error with a name in place of a path that the user does not know."""
    message, where = (text.replace(path, name) for text in (error.message, error.where))
    return type(error)(message, where=where, hint=error.hint)


def _source(file: str | None, line: str | None, choice: Choice) -> Source:
    if (file is None) == (line is None):
        raise UsageError(
            "give either a file or --command" if file is None else "both a file and --command",
            hint="spark-cluster recipes import FILE, or --command 'docker run ...'",
        )
    if line is not None:
        return commandline.read(line)
    if file == "-":
        return _from_stdin(choice)
    return read_file(Path(str(file)).expanduser(), choice)


def _from_stdin(choice: Choice) -> Source:
    """Standard input, through a file, as its reader names lines of a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "stdin"
        path.write_bytes(sys.stdin.buffer.read(_LARGEST))
        try:
            source = read_file(path, choice)
        except SparkClusterError as error:
            raise _renamed(error, str(path), _STDIN) from None
    source.title = "" if source.title == "stdin" else source.title
    source.origin = source.origin.replace("stdin", _STDIN)
    return source


def _target(app: App, output: str | None, name: str | None) -> tuple[Path, str | None]:
    """The folder to write to, and the recipe's name where it is said."""
    if name is not None and not NAME.fullmatch(name):
        raise UsageError(
            f"--name: found '{name}', expected letters, digits, '_', '-' and '.'",
            hint="folders go into --output",
        )
    if output is None:
        return app.project.folder / "recipes", name
    if output == "-":
        raise UsageError(
            "--output: found '-', expected a file or folder; a recipe is not printed",
            hint="leave --output out, and recipes/NAME.yaml is written",
        )
    path = Path(output).expanduser()
    if path.suffix != ".yaml":
        return path, name
    if name is not None and name != path.stem:
        raise UsageError(
            f"--name {name} and --output {path.name}: a recipe has the name of its file",
            hint="leave one of them out",
        )
    return path.parent, path.stem


def _refuse(app: App, path: Path, imported: Imported, *, named: bool) -> None:
    """Nothing is replaced, and no shipped recipe hidden, unless the user says so."""
    listed = not named and path.stem in app.project.list("recipes")
    for place in (path, *(path.parent / top for top in folders_of(imported.files))):
        if place.exists():
            hint = "choose another --name, or replace it with --force"
            raise UsageError(f"{shown(place)} exists", hint=hint)
        if listed:
            raise UsageError(
                f"there is a recipe {path.stem} already, which this one would hide",
                hint=f"choose another --name, or confirm with --name {path.stem}",
            )


def _about_model(path: Path, project: Project, hub: Hub) -> str:
    """Return a line about the size of a recipe's model; what is read of it is kept for `plan`."""
    try:
        recipe = load_recipe(path, project)
        serving = serving_of(recipe, recipe.tensor_parallel.min, project.folder, hub=hub)
        weights = serving.weights
    except SparkClusterError as error:
        return f"the model's size is not known: {error.message}"
    source = "counted from its tensors" if weights.counted else "computed from its shape"
    size = weights.memory_bytes() / GIB
    return f"{recipe.model.name}: {serving.quantization}, {size:.1f} GiB of weights ({source})"


def _show(app: App, path: Path, imported: Imported) -> None:
    app.console.say("{} {} → {}", mark("ok"), imported.kind, shown(path))
    if imported.kept:
        app.console.say("\n[bold]kept as it is[/]  {}", ", ".join(imported.kept))
    _table(app, ("became", "in the recipe"), [(one.what, one.where) for one in imported.carried])
    _table(app, ("left out", "why"), [(one.what, one.why) for one in imported.left_out])
    app.console.print()
    for note in imported.notes:
        app.console.say("[dim]note[/] {}", note)
    for offer in imported.offers:
        app.console.say("[cyan]for a DGX Spark[/] {}: {}", offer.option, offer.what)
    for left in imported.left_out:
        if left.blocks:
            what, why = left.what, left.consequence
            app.console.say("[red]it cannot work without[/] {}: {}", what, why)
    for task in imported.to_do:
        app.console.say("[yellow]to do[/] {}", task)
    own = path.resolve().parent == (app.project.folder / "recipes").resolve()
    app.console.print(f"Next: spark-cluster lint {imported.name if own else shown(path)}")


def _table(app: App, titles: tuple[str, str], rows: list[tuple[str, str]]) -> None:
    if not rows:
        return
    table = plain_table(*titles, wide=True)
    for what, where in rows:
        table.add_row(what, painted(where, "dim"))
    app.console.print()
    app.console.print(table)


@click.command("update", cls=DeclaredCommand)
def update(
    app: App,
    *,
    names: Annotated[tuple[str, ...], {"metavar": "[REGISTRY]..."}],
    check: bool,
    yes: bool,
    allow_rewritten: bool,
) -> int:
    """Fetch the recipes of the project's registries (default: of all in registries.yaml).

    A branch that has moved is shown as the names of recipes that were added, changed and removed,
    and is taken when you agree. Recipes are converted, never run; use them as @REGISTRY/RECIPE.

    Args:
        check: Show what has changed and take nothing.
        yes: Take what has changed without asking.
        allow_rewritten: Also take a branch whose history no longer has the commit in use.
    """
    folder = app.project.folder
    chosen = [registries.registry_named(name, folder) for name in dict.fromkeys(names)]
    chosen = chosen or list(registries.registries(folder))
    if not chosen:
        raise UsageError(
            f"no registries: {registries.FILE} is not in {folder}",
            hint="see the how-to page 'Share recipes'",
        )
    rows: list[Update | NotUpdated] = []
    status = 0
    for registry in chosen:
        try:
            found = look(registry, folder)
            _show_changes(app, found)
            rewritten = found.rewritten and not found.in_use and not check
            if rewritten and not allow_rewritten:
                status = 4
            elif not found.in_use and not check and (yes or _is_agreed(app, found)):
                found = take(found, folder)
        except SparkClusterError as error:
            rows.append(NotUpdated(registry.name, error))
            status = error.exit_code
            app.console.say("{} {}: {}", mark("fail"), registry.name, error)
        else:
            rows.append(found)
            app.console.print(_outcome(app, found, check=check))
    if app.as_json:
        app.print_json({"ok": status == 0, "registries": rows})
    return status


@dataclass(frozen=True)
class NotUpdated:
    """A registry that could not be looked at."""

    registry: str
    error: ErrorDocument


def _is_agreed(app: App, found: Update) -> bool:
    """Return whether the user takes a revision; the first one is not asked for."""
    interactive = sys.stdin.isatty() and sys.stdout.isatty() and not app.as_json
    return found.taken is None or (interactive and click.confirm("Take it?", default=False))


def _outcome(app: App, found: Update, *, check: bool) -> Text:
    """What is in use now."""
    name = found.registry.name
    if found.in_use:
        usable = counted(len(found.found.recipes) - len(found.broken), "recipe")
        return styled("{} {}: {} at {}", mark("ok"), name, usable, found.found.revision[:12])
    if found.rewritten and not check:
        option = app.command(f"recipes update {name} --allow-rewritten")
        return styled("{} {}: not taken; if its owner says why: {}", mark("fail"), name, option)
    command = app.command(f"recipes update {name} --yes")
    return styled("- {}: not taken; to take it: {}", name, command)


def _show_changes(app: App, found: Update) -> None:
    """Show the names that differ."""
    say = app.console.say
    name, new = found.registry.name, found.found.revision[:12]
    if found.changes or found.rewritten:
        say("[bold]{}[/]  {} → {}", name, (found.taken or "nothing")[:12], new)
    if found.rewritten:
        say("  [red]its history was rewritten[/]: the commit in use is not in it")
    limit = None if app.verbose else _SHOWN
    for sign, kind in (("+", "added"), ("~", "changed"), ("-", "removed")):
        names: tuple[str, ...] = getattr(found.changes, kind)
        for one in names[:limit]:
            say("  {} {} [dim]{}[/]", sign, one, kind)
        if limit and len(names) > limit:
            say("  [dim]and {} more {} (-v shows them)[/]", len(names) - limit, kind)
    broken, skipped = found.broken, found.found.skipped
    if app.verbose:
        for listed in broken:
            say("  [dim]not usable:[/] {}: {}", listed.name, listed.error)
        for text in skipped:
            say("  [dim]not taken:[/] {}", text)
    elif broken or skipped:
        counts = {"not usable": (broken, "recipe"), "not taken": (skipped, "file")}
        told = (f"{what}: {counted(len(n), noun)}" for what, (n, noun) in counts.items() if n)
        say("  [dim]{} (-v says why)[/]", "; ".join(told))


# -- save ------------------------------------------------------------------------------------------


@click.command(cls=DeclaredCommand)
def save(app: App, *, name: str, base: str | None, force: bool, changes: Overriding) -> None:
    """Write recipes/NAME.yaml: another recipe, with the options of `up` as its own values.

    Measurements of the other recipe are left out if something is changed.

    Args:
        base (--from RECIPE): Recipe to start from (default: the inventory's).
        force: Replace a recipe of this name, or hide a shipped one.
    """
    hint = "give --from RECIPE, or `serve: {recipe: NAME}` in the inventory"
    origin = must_be_given(base or app.own_recipe, "no recipe is given to start from", hint)
    recipe = changed(load_recipe(origin, app.project), changes)
    path = save_recipe(recipe, name, app.project, force=force)
    overrides = dict(recipe.overrides)
    found = {"name": name, "file": str(path), "from": recipe.name, "overrides": overrides}
    with_changes = f" with {options_text(recipe.overrides)}" if recipe.overrides else ""
    app.show(found, f"{path}: {recipe.name}{with_changes}\nNext: spark-cluster plan {name}")
