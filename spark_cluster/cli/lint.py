"""`lint`: known issues of a recipe or a command line, before anything is started."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import click
from rich.text import Text

from spark_cluster.cli.app import App
from spark_cluster.cli.console import joined, mark, painted, styled
from spark_cluster.cli.findings import show
from spark_cluster.cli.options import Allowing, Command, Offline, hub
from spark_cluster.cli.recipes_to_serve import changed_launch
from spark_cluster.cli.terminal import Console
from spark_cluster.cli.visible import visible
from spark_cluster.config.allowances import Allowances
from spark_cluster.engine import firewall
from spark_cluster.errors import UsageError
from spark_cluster.known_issues import fix_recipe, lint_target
from spark_cluster.known_issues.entries import catalogue
from spark_cluster.known_issues.lint_target import Fixed, LintTarget
from spark_cluster.known_issues.match import KnownIssueMatch
from spark_cluster.loader.registries import is_of_registry


@click.command(cls=Command)
def command(
    ctx: click.Context,
    app: App,
    *,
    target: Annotated[str | None, {"metavar": "[RECIPE|FILE]"}],
    text: str | None,
    tp: Annotated[int, click.IntRange(1, 64)] | None,
    fix: bool,
    output: Annotated[Path, click.Path(path_type=Path, dir_okay=False)] | None,
    offline: Offline,
    options: tuple[str, ...],
    allow: Allowing,
) -> None:
    """Find known issues in a recipe (by default the inventory's), a file of another tool, or a
    command line: wrong images and flags, flags that contradict each other.

    Each issue names the flag to change; `explain --about ID` shows details. Nodes are not asked:
    use `plan` to see what fits on them.

    Exit status 1 when there is an error (with --fix: one that remains).

    Args:
        text (--command LINE): Check a `docker run` or `vllm serve` command line; - reads it from
            standard input.
        tp (N): Check only this tensor-parallel size (default: every size of the recipe).
        fix: Fix the errors and warnings that a change of the text can fix.
        output (-o, --output FILE): With --fix: write the fixed text to this file instead of the
            original.
        options (--option KEY=VALUE): Engine argument instead of the recipe's, as for `up`;
            repeatable.
    """
    if output is not None and not fix:
        raise UsageError("--output needs --fix", hint="--output FILE is where --fix writes")
    chosen = _target(app, target, text, tp, allow)
    asked = hub(offline=offline)
    if options:
        if fix:
            raise UsageError("--fix changes the text, and --option is not in it")
        chosen = lint_target.changed(chosen, lambda launch: changed_launch(launch, options))
    if fix:
        place = _place(app, chosen, output)
        done = lint_target.fix(chosen, app.project, asked)
        found = done.remaining
        _write(app, chosen, done, place)
    else:
        found = lint_target.findings(chosen, chosen.text, app.project, asked)
        if app.as_json:
            issues = found
            lacking = [entry.model_dump() for entry in chosen.not_carried_over]
            asks = {"variables": list(chosen.variables), "builds": list(chosen.builds)}
            app.print_json({"issues": issues, **asks, "not_carried_over": lacking})
        else:
            _show(app.console, chosen.title, found, verbose=app.verbose)
            _say_more(app, chosen, allow)
    wrong = [finding for finding in found if finding.severity == "error"]
    ctx.exit(1 if wrong or any(entry.blocks for entry in chosen.not_carried_over) else 0)


def _say_more(app: App, chosen: LintTarget, allow: Allowances) -> None:
    """What an import could not take over, what must be allowed (the values of variables are not
    read), and what the inventory leaves open, if there is one: a recipe does not show its network.
    """
    rows = [("fail" if one.blocks else "warn", str(one)) for one in chosen.not_carried_over]
    rows += [("info", remark) for remark in chosen.builds]
    allowed = app.allowances(allow).env
    for name in chosen.variables:
        text = f"it needs the variable {name} of this machine"
        if name not in allowed:
            text += (
                f": give `up` --allow-env {name}, or set `allow_env` under serve in the inventory"
            )
        rows.append(("info", text))
    if not app.inventory_is_missing and app.inventory.trusted_network:
        rows.append(("warn", firewall.OPEN))
    for severity, text in rows:
        app.console.print(styled("{} {}", mark(severity), text), soft_wrap=True)


def _target(
    app: App, target: str | None, text: str | None, tp: int | None, allow: Allowances
) -> LintTarget:
    if text is not None:
        if target is not None:
            raise UsageError("give a recipe or --command, not both")
        return lint_target.of_command(sys.stdin.read() if text == "-" else text, tp)
    name = target or (None if app.inventory_is_missing else app.inventory.serve.recipe)
    if name is None:
        raise UsageError(
            "no recipe given, and the inventory names none",
            hint="name a recipe (spark-cluster recipes list), a file, or --command LINE",
        )
    return lint_target.of_target(name, app.project, tp, app.allowances(allow))


def _place(app: App, chosen: LintTarget, output: Path | None) -> Path | None:
    """Return where to write; None for the screen.

    Raises:
        UsageError: it cannot be fixed, or what is shipped or a registry's would be overwritten.
    """
    if not chosen.text:
        raise UsageError(
            f"{chosen.title} is another tool's file and cannot be fixed here",
            hint="spark-cluster recipes import makes a recipe of it, which can be fixed",
        )
    if output is not None or chosen.path is None:
        return output
    if chosen.path.resolve().is_relative_to(app.project.shipped.resolve()):
        own = Path("recipes") / chosen.path.name
        raise UsageError(
            f"{chosen.title} is a shipped recipe, which is never changed",
            hint=f"--output {own} writes a copy of your own, which takes precedence",
        )
    if is_of_registry(chosen.path):
        raise UsageError(
            f"{chosen.title} is a recipe of a registry, which is never changed",
            hint="spark-cluster recipes import makes it one of your own, which can be fixed",
        )
    return chosen.path


def _write(app: App, chosen: LintTarget, done: Fixed, place: Path | None) -> None:
    if place is not None:
        place.parent.mkdir(parents=True, exist_ok=True)
        lint_target.write(place, _named(chosen, done, place))
    if app.as_json:
        document = {
            "issues": done.remaining,
            "fixed": done.fixed,
            "output": str(place) if place is not None else None,
            "text": done.text if place is None else None,
        }
        app.print_json(document)
        return
    console = app.console if place is not None else Console(stderr=True)
    for finding in done.fixed:
        words = (mark("ok"), finding.title, finding.id)
        console.print(styled("{} [green]fixed[/] {}  [dim]{}[/]", *words))
    if not done.fixed:
        console.print("no issue can be fixed by a change of the text")
    _show(console, chosen.title, done.remaining, verbose=app.verbose)
    if place is None:
        text = done.text.rstrip("\n")  # alone on standard output, so that it can go to a file
        click.echo(visible(text) if sys.stdout.isatty() else text)
    else:
        console.print(f"written: {place}", soft_wrap=True)


def _named(chosen: LintTarget, done: Fixed, place: Path) -> str:
    """The text; a recipe's name follows its file."""
    is_recipe = chosen.path is not None and chosen.path.suffix.lower() in (".yaml", ".yml")
    if is_recipe and chosen.path is not None and place.stem != chosen.path.stem:
        return fix_recipe.fixed(done.text, [], place.stem)
    return done.text


def _show(console: Console, title: str, found: list[KnownIssueMatch], *, verbose: bool) -> None:
    """The verdict first, then errors and warnings in full, then notes in a line each, then what
    holds for nearly every launch in one line."""
    known = catalogue()
    hygiene = [f for f in found if f.id in known and known[f.id].hygiene]
    main = [f for f in found if f not in hygiene]
    console.print(_verdict(title, main))
    for finding in main if not verbose else [*main, *hygiene]:
        if finding.severity != "info" or verbose:
            show(console, finding)
    if verbose:
        return
    for finding in main:
        if finding.severity == "info":
            words = (mark("info"), finding.title, finding.found, finding.id)
            console.print(styled("{} {}: {}  [dim]{}[/]", *words))
    if hygiene:
        short = "; ".join(f"{f.title} ({f.id})" for f in hygiene)
        console.print(styled("{} [dim]hygiene: {} (-v shows them in full)[/]", mark("info"), short))


def _verdict(title: str, found: list[KnownIssueMatch]) -> Text:

    counts = [
        (sum(f.severity == severity for f in found), word, style)
        for severity, word, style in (
            ("error", "error", "red"),
            ("warning", "warning", "yellow"),
            ("info", "note", "blue"),
        )
    ]
    parts = [painted(f"{n} {what}{'s' * (n != 1)}", style) for n, what, style in counts if n]
    return styled("{}: {}", title, joined(parts or [painted("no known issue", "green")], ", "))
