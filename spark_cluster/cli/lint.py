"""`lint`: known issues of a recipe or a command line, before anything is started."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spark_cluster.cli.app import App, allowing
from spark_cluster.cli.visible import visible
from spark_cluster.errors import UsageError

if TYPE_CHECKING:
    from spark_cluster.allowances import Allowances
    from spark_cluster.cli.console import Console
    from spark_cluster.issues.finding import Finding
    from spark_cluster.issues.subject import Fixed, Subject


@click.command()
@click.argument("target", metavar="[RECIPE|FILE]", required=False)
@click.option(
    "--command", "text", metavar="LINE", help="A `docker run` or `vllm serve` line; - reads it."
)
@click.option(
    "--tp", type=click.IntRange(1, 64), metavar="N", help="Only this size (default: all of them)."
)
@click.option("--fix", is_flag=True, help="Fix errors and warnings where a change of the text can.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="With --fix: where to write, instead of the file itself (or the screen).",
)
@allowing
@click.pass_context
def command(
    ctx: click.Context,
    target: str | None,
    text: str | None,
    tp: int | None,
    fix: bool,
    output: Path | None,
    allow: Allowances,
) -> None:
    """Finds known issues of images, models and flags, and flags that contradict each other, in a
    recipe (by default the inventory's), a file of another tool, or a command line.

    Each names the flag to change; `explain --about ID` tells more. No node is asked: `plan` does,
    and knows what fits.

    Exit status 1 when there is an error (with --fix: one that remains).
    """
    from spark_cluster.issues import subject as subjects

    app: App = ctx.obj
    if output is not None and not fix:
        raise UsageError("--output is where --fix writes; --fix is missing")
    chosen = _subject(app, target, text, tp, allow)
    if fix:
        place = _place(app, chosen, output)
        done = subjects.fix(chosen, app.project)
        found = done.remaining
        _write(app, chosen, done, place)
    else:
        found = subjects.findings(chosen, chosen.text, app.project)
        if app.as_json:
            issues = [finding.document() for finding in found]
            app.print_json({"issues": issues, "variables": list(chosen.variables)})
        else:
            _show(app.console, chosen.title, found, verbose=app.verbose)
            _say_what_is_asked_for(app, chosen, allow)
            _say_what_is_open(app)
    ctx.exit(1 if any(finding.severity == "error" for finding in found) else 0)


def _say_what_is_asked_for(app: App, subject: Subject, allow: Allowances) -> None:
    """The variables of this machine; their values are not read."""
    from spark_cluster.cli.console import mark, styled

    allowed = app.allowances(allow).env
    for name in subject.variables:
        text = f"it asks for {name} of this machine"
        if name not in allowed:
            text += f": `up` wants --allow-env {name}, or `allow_env` under serve in the inventory"
        app.console.print(styled("{} {}", mark("info"), text), soft_wrap=True)


def _say_what_is_open(app: App) -> None:
    """Of the inventory, if there is one: no recipe shows that its network is trusted."""
    from spark_cluster.cli.console import mark, styled
    from spark_cluster.serving import firewall

    if not app.inventory_is_missing and app.inventory.trusted_network:
        app.console.print(styled("{} {}", mark("warn"), firewall.OPEN), soft_wrap=True)


def _subject(
    app: App, target: str | None, text: str | None, tp: int | None, allow: Allowances
) -> Subject:
    from spark_cluster.issues import subject as subjects

    if text is not None:
        if target is not None:
            raise UsageError("a recipe and --command contradict each other", hint="leave one out")
        return subjects.of_command(sys.stdin.read() if text == "-" else text, tp)
    name = target or (None if app.inventory_is_missing else app.inventory.serve.recipe)
    if name is None:
        raise UsageError(
            "nothing says what to look at",
            hint="name a recipe (spark-cluster recipes list), a file, or --command LINE",
        )
    return subjects.of_target(name, app.project, tp, app.allowances(allow))


def _place(app: App, subject: Subject, output: Path | None) -> Path | None:
    """Where to write; None for the screen.

    Raises:
        UsageError: it cannot be mended, or what is shipped would be overwritten.
    """
    if not subject.text:
        raise UsageError(
            f"{subject.title} is another tool's file and cannot be fixed here",
            hint="spark-cluster recipes import makes a recipe of it, which can",
        )
    if output is not None or subject.path is None:
        return output
    if subject.path.resolve().is_relative_to(app.project.shipped.resolve()):
        own = Path("recipes") / subject.path.name
        raise UsageError(
            f"{subject.title} is a shipped recipe, which is not changed",
            hint=f"--output {own} writes one of your own, which then comes first",
        )
    return subject.path


def _write(app: App, subject: Subject, done: Fixed, place: Path | None) -> None:
    from spark_cluster.cli.console import Console, mark, styled
    from spark_cluster.issues import subject as subjects

    if place is not None:
        place.parent.mkdir(parents=True, exist_ok=True)
        subjects.write(place, _named(subject, done, place))
    if app.as_json:
        document = {
            "issues": [finding.document() for finding in done.remaining],
            "fixed": [finding.document() for finding in done.mended],
            "output": str(place) if place is not None else None,
        }
        app.print_json(document if place is not None else {**document, "text": done.text})
        return
    console = app.console if place is not None else Console(stderr=True)
    for finding in done.mended:
        told = (mark("ok"), finding.title, finding.id)
        console.print(styled("{} [green]fixed[/] {}  [dim]{}[/]", *told))
    if not done.mended:
        console.print("nothing that a change could fix")
    _show(console, subject.title, done.remaining, verbose=app.verbose)
    if place is None:
        text = done.text.rstrip("\n")  # alone on standard output, so that it can go to a file
        click.echo(visible(text) if sys.stdout.isatty() else text)
    else:
        console.print(f"written: {place}", soft_wrap=True)


def _named(subject: Subject, done: Fixed, place: Path) -> str:
    """The text; a recipe's name follows its file."""
    from spark_cluster.issues import fixing_recipe

    is_recipe = subject.path is not None and subject.path.suffix.lower() in (".yaml", ".yml")
    if is_recipe and subject.path is not None and place.stem != subject.path.stem:
        return fixing_recipe.fixed(done.text, [], place.stem)
    return done.text


def _show(console: Console, title: str, found: list[Finding], *, verbose: bool) -> None:
    from spark_cluster.cli.console import joined, mark, painted, styled
    from spark_cluster.cli.findings import show

    for finding in found:
        if finding.severity != "info" or verbose:
            show(console, finding)
    notes = [f for f in found if f.severity == "info"] if not verbose else []
    for finding in notes:
        told = (mark("info"), finding.title, finding.found, finding.id)
        console.print(styled("{} {}: {}  [dim]{}[/]", *told))
    counts = [
        (sum(f.severity == severity for f in found), severity, style)
        for severity, style in (("error", "red"), ("warning", "yellow"), ("info", "blue"))
    ]
    parts = [painted(f"{n} {what}{'s' * (n != 1)}", style) for n, what, style in counts if n]
    verdict = joined(parts or [painted("no known issue", "green")], ", ")
    console.print(styled("{}: {}", title, verdict))
