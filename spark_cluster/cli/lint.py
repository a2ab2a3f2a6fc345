"""Known issues of a launch: `lint`; and of logs: `explain`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import click
from rich.text import Text

from spark_cluster.cli.app import App
from spark_cluster.cli.console import joined, labelled, mark, painted, plain_table, styled, visible
from spark_cluster.cli.options import Allowing, DeclaredCommand, Offline, hub
from spark_cluster.cli.serving import changed_launch, must_be_given
from spark_cluster.cli.terminal import Console
from spark_cluster.config.extension import Allowances
from spark_cluster.config.registries import is_of_registry
from spark_cluster.config.yamlfile import did_you_mean
from spark_cluster.engine import firewall
from spark_cluster.errors import UsageError
from spark_cluster.issues import lint_target, log_reading
from spark_cluster.issues.entries import Issue, KnownIssueMatch, catalogue
from spark_cluster.issues.explain import Explanation
from spark_cluster.issues.explain import explain as explained
from spark_cluster.issues.lint_target import Fixed, LintTarget
from spark_cluster.issues.log_reading import Seen
from spark_cluster.node.output import counted


def show_finding(
    console: Console, found: KnownIssueMatch, *, place: str = "", doubtful: bool = False
) -> None:
    """A finding in full: title and id, what was seen, why, what to do.

    Args:
        place: where it was seen, and when.
        doubtful: it is the likeliest of several that its line can mean.
    """
    from rich.padding import Padding

    named = f"  {found.id}" if found.id else ""
    sign, title = mark(found.severity), found.title
    if doubtful:
        sign, title = mark("unknown"), f"perhaps: {title}"
    console.say("{} [bold]{}[/][dim]{}[/]", sign, title, named)
    rows = [painted(place, "dim")] if place else []
    rows.append(painted(found.found))
    rows += [painted(found.cause, "dim")] if found.cause else []
    rows += [painted(f"→ {found.fix}", "cyan")] if found.fix else []
    for row in rows:
        console.print(Padding(row, (0, 0, 0, 2), expand=False))


def show_issue(console: Console, known: Sequence[Issue]) -> None:
    """An entry of the catalogue."""
    (issue,) = known
    console.say("{} [bold]{}[/]  [dim]{}[/]", mark(issue.severity), issue.title, issue.id)
    rows = {
        "symptom": issue.symptom,
        "cause": issue.cause,
        "fix": issue.fix,
        **{f"fix for {name}": text for name, text in (issue.fixes | issue.also_for).items()},
        "versions": f"vLLM {issue.versions}" if issue.versions else "",
        "found by": _found_by(issue),
        "depends on": ", ".join(issue.keyed_on),
        "source": issue.source,
        "confidence": issue.confidence,
    }
    console.print(labelled((name, text) for name, text in rows.items() if text))


def _found_by(issue: Issue) -> str:
    ways = ["lint"] if issue.when or issue.rule else []
    ways += ["explain"] if issue.log else []
    ways += [f"doctor ({', '.join(issue.all_checks)})"] if issue.all_checks else []
    ways += [f"up (readiness: {', '.join(issue.rungs)})"] if issue.rungs else []
    return ", ".join(ways) or "nothing (for information)"


@click.command(cls=DeclaredCommand)
def lint(
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
) -> int:
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
            _show_lint(app.console, chosen.title, found, verbose=app.verbose)
            _say_more(app, chosen, allow)
    wrong = [finding for finding in found if finding.severity == "error"]
    return 1 if wrong or any(entry.blocks for entry in chosen.not_carried_over) else 0


def _say_more(app: App, chosen: LintTarget, allow: Allowances) -> None:
    """What an import could not take over, what must be allowed (the values of variables are not
    read), and what the inventory leaves open, if there is one: a recipe does not show its network.
    """
    rows = [("fail" if one.blocks else "warn", str(one)) for one in chosen.not_carried_over]
    rows += [("info", remark) for remark in chosen.builds]
    allowed = app.cluster.allowances(allow).env
    for name in chosen.variables:
        text = f"it needs the variable {name} of this machine"
        if name not in allowed:
            text += (
                f": give `up` --allow-env {name}, or set `allow_env` under serve in the inventory"
            )
        rows.append(("info", text))
    if not app.cluster.inventory_is_missing and app.inventory.trusted_network:
        rows.append(("warn", firewall.OPEN))
    for severity, text in rows:
        app.console.say("{} {}", mark(severity), text)


def _target(
    app: App, target: str | None, text: str | None, tp: int | None, allow: Allowances
) -> LintTarget:
    if text is not None:
        if target is not None:
            raise UsageError("give a recipe or --command, not both")
        return lint_target.of_command(sys.stdin.read() if text == "-" else text, tp)
    if target == "-" or (target and " " in target and not Path(target).exists()):
        raise UsageError(
            f"{target}: expected the name of a recipe, or a file",
            hint="a command line goes to --command LINE; `--command -` reads standard input",
        )
    missing = "no recipe given, and the inventory names none"
    hint = "name a recipe (spark-cluster recipes list), a file, or --command LINE"
    name = must_be_given(target or app.own_recipe, missing, hint)
    return lint_target.of_target(name, app.project, tp, app.cluster.allowances(allow))


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
        console.say("{} [green]fixed[/] {}  [dim]{}[/]", mark("ok"), finding.title, finding.id)
    if not done.fixed:
        console.print("no issue can be fixed by a change of the text")
    _show_lint(console, chosen.title, done.remaining, verbose=app.verbose)
    if place is None:
        text = done.text.rstrip("\n")  # alone on standard output, so that it can go to a file
        click.echo(visible(text) if sys.stdout.isatty() else text)
    else:
        console.print(f"written: {place}")


def _named(chosen: LintTarget, done: Fixed, place: Path) -> str:
    """The text; a recipe's name follows its file."""
    is_recipe = chosen.path is not None and chosen.path.suffix.lower() in (".yaml", ".yml")
    if is_recipe and chosen.path is not None and place.stem != chosen.path.stem:
        return lint_target.fixed_recipe(done.text, [], place.stem)
    return done.text


def _show_lint(
    console: Console, title: str, found: list[KnownIssueMatch], *, verbose: bool
) -> None:
    """The verdict first, then errors and warnings in full, then notes in a line each, then what
    holds for nearly every launch in one line."""
    known = catalogue()
    hygiene = [f for f in found if f.id in known and known[f.id].hygiene]
    main = [f for f in found if f not in hygiene]
    console.print(_counts(title, main))
    for finding in main if not verbose else [*main, *hygiene]:
        if finding.severity != "info" or verbose:
            show_finding(console, finding)
    if verbose:
        return
    for finding in main:
        if finding.severity == "info":
            words = (mark("info"), finding.title, finding.found, finding.id)
            console.say("{} {}: {}  [dim]{}[/]", *words)
    if hygiene:
        short = "; ".join(f"{f.title} ({f.id})" for f in hygiene)
        console.say("{} [dim]also: {} (-v for details)[/]", mark("info"), short)


def _counts(title: str, found: list[KnownIssueMatch]) -> Text:
    words = {"error": ("error", "red"), "warning": ("warning", "yellow"), "info": ("note", "blue")}
    parts = [
        painted(counted(n, word), style)
        for severity, (word, style) in words.items()
        if (n := sum(f.severity == severity for f in found))
    ]
    return styled("{}: {}", title, joined(parts or [painted("no known issue", "green")], ", "))


NAMED = 4
"""Logs whose names stand in the headline."""


@click.command(cls=DeclaredCommand, output=Explanation)
def explain(
    app: App, *, files: Annotated[tuple[str, ...], {"metavar": "FILE..."}], about: str | None
) -> None:
    """Explain logs of vLLM, SGLang, Ray, NCCL or Docker: the root of all logs first, with its cause
    and fix, then other problems, what only follows from them, and the start-up facts. If the cause
    is not known: the decisive line, and where to look next.

    Give the logs of all ranks at once; - is standard input, a .gz is unpacked, a folder (Ray's
    session_latest) is read whole. Prefixes of journalctl, Docker, Compose, kubectl and Ray are
    understood. Logs of any length are read as a stream.

    Exit status 0 when the logs could be read, whatever they say; 2 when one cannot be read.

    Args:
        about (ID): Show a known issue by its ID instead; `all` lists every one.
    """
    if about is not None:
        if files:
            raise UsageError("give --about or log files, not both")
        _about(app, about)
        return
    explanation = explained(log_reading.sources(files, short=not app.as_json))
    app.show(explanation, _show_explanation)


def _about(app: App, name: str) -> None:
    known = catalogue()
    if name != "all" and name not in known:
        raise UsageError(f"no known issue '{name}'", hint=did_you_mean(name, known, "issues"))
    chosen = list(known.values()) if name == "all" else [known[name]]
    show = _list if name == "all" else show_issue
    app.show({"issues": chosen}, lambda app, found: show(app.console, found["issues"]))


def _list(console: Console, known: Sequence[Issue]) -> None:
    table = plain_table("sign", "id", "title", whole=("id",), header=False, wide=True)
    for issue in known:
        table.add_row(mark(issue.severity), issue.id, issue.title)
    console.print(table)


def _show_explanation(app: App, explanation: Explanation) -> None:
    cause = explanation.cause
    app.console.print(_headline(explanation))
    now = [p for p in explanation.problems if not p.overcome]
    main = [p for p in now if not p.follows or p is cause]
    certain = explanation.verdict == "cause"
    other = [p for p in main if p is not cause and not p.known and (certain or p.weak)]
    shown = [p for p in main if p is cause or (p not in other and p.finding.severity != "info")]
    for seen in shown:
        doubtful = seen.known and seen.broad
        show_finding(app.console, seen.finding, place=_seen_at(seen), doubtful=doubtful)
    if explanation.verdict not in ("warnings", "no-error"):
        _list_seen(app, "other errors" if certain else "other lines that look like errors", other)
    _list_seen(app, "consequences of the above", [p for p in now if p.follows and p is not cause])
    past = [p for p in explanation.problems if p.overcome]
    _list_seen(app, "earlier errors, before the server last came up", past)
    for seen in main:
        if seen.finding.severity == "info" and seen not in shown:
            show_finding(app.console, seen.finding, place=_seen_at(seen))
    _show_start(app, explanation)
    _show_next(app, explanation)


def _list_seen(app: App, title: str, seen: list[Seen]) -> None:

    if seen:
        app.console.print(painted(f"{title}:", "dim"))
    for one in seen:
        app.console.print(painted(f"  {one.where}  {one.finding.found}", "dim"))


def _show_next(app: App, explanation: Explanation) -> None:
    """The end of logs without an error where there is no cause, and where to look next."""

    if explanation.verdict in ("effects", "unfinished") or not explanation.facts:
        for name, said in explanation.last.items():
            app.console.print(painted(f"the last lines of {name}:", "dim"))
            for text in said:
                app.console.print(painted(f"  {text}", "dim"))
    for step in explanation.next_steps:
        app.console.say("{} next: {}", mark("info"), step)


def _show_start(app: App, explanation: Explanation) -> None:
    if explanation.facts:
        whole = ("sign", "name")
        table = plain_table(*whole, "fact", whole=whole, dim=("name",), header=False, wide=True)
        for name, fact in explanation.facts.items():
            table.add_row(mark("ok"), name, fact)
        app.console.print(table)
    for missing in explanation.missing:
        app.console.say("{} not in the logs: {}", mark("unknown"), missing)


HEADLINES = {
    "cause": ("the cause", "red"),
    "likely": ("what happened; its cause is not certain", "red"),
    "unknown": ("not a known issue; the decisive line", "red"),
    "effects": ("only consequences are in these logs, not their cause", "red"),
    "unfinished": ("the server never took requests, and no error says why", "yellow"),
    "warnings": ("only warnings", "yellow"),
    "no-error": ("no error", "green"),
}

NOT_RECOGNISED = ("neither an error nor a start was recognised", "yellow")

NO_ENGINE = ("no line of an engine was recognised; what looks most like an error", "yellow")


def _headline(explanation: Explanation) -> Text:

    lines = sum(log.lines for log in explanation.logs)
    names = [log.name for log in explanation.logs]
    named = ", ".join(names) if len(names) <= NAMED else f"{names[0]} and {len(names) - 1} more"
    headline = HEADLINES[explanation.verdict] if explanation.recognised else NOT_RECOGNISED
    if explanation.verdict == "no-error" and not {"up", "requests"} & {*explanation.facts}:
        headline = NOT_RECOGNISED
    if explanation.verdict == "unknown" and not (explanation.engine or explanation.facts):
        headline = NO_ENGINE
    verdict = painted(*headline)
    engine = f", {explanation.engine}" if explanation.engine else ""
    return styled(
        "{}  [dim]{}: {:,} line{}{}[/]", verdict, named, lines, "s" * (lines != 1), engine
    )


def _seen_at(seen: Seen) -> str:
    times = f"  {seen.count} times" if seen.count > 1 else ""
    return f"{seen.where}  {seen.at.removesuffix('.000000')}{times}"
