"""`explain`: what logs say, the cause first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.console import mark, painted, plain_table, styled
from spark_cluster.cli.findings import show, show_issue
from spark_cluster.cli.options import Command
from spark_cluster.config.suggest import did_you_mean
from spark_cluster.errors import UsageError
from spark_cluster.known_issues.entries import Issue, catalogue
from spark_cluster.known_issues.explain import Explanation, explain
from spark_cluster.known_issues.seen import Seen
from spark_cluster.logs import reading

if TYPE_CHECKING:
    from rich.text import Text

NAMED = 4
"""Logs whose names stand in the headline."""


@click.command(cls=Command)
def command(
    app: App, *, files: Annotated[tuple[str, ...], {"metavar": "FILE..."}], about: str | None
) -> None:
    """Explain logs of vLLM, SGLang, Ray, NCCL or Docker: the root of all logs first, with its cause
    and fix, then other problems, what only follows from them, and the start-up facts. Where the
    cause is not known: the decisive line, and where to look next.

    Give the logs of all ranks at once; - is standard input, a .gz is unpacked, a folder (Ray's
    session_latest) is read whole. Prefixes of journalctl, Docker, Compose, kubectl and Ray are
    understood. Logs of any length are read as a stream.

    Exit status 0 when the logs could be read, whatever they say; 2 when one could not.

    Args:
        about (ID): Show a known issue by its ID instead; `all` lists every one.
    """
    if about is not None:
        if files:
            raise UsageError("give --about or log files, not both")
        _about(app, about)
        return
    explanation = explain(reading.sources(files, short=not app.as_json))
    app.show(explanation, _show)


def _about(app: App, name: str) -> None:
    known = catalogue()
    if name != "all" and name not in known:
        raise UsageError(f"no known issue '{name}'", hint=did_you_mean(name, known, "issues"))
    chosen = list(known.values()) if name == "all" else [known[name]]
    if app.as_json:
        app.print_json({"issues": [i.model_dump(mode="json") for i in chosen]})
    elif name == "all":
        _list(app, known)
    else:
        show_issue(app.console, chosen[0])


def _list(app: App, known: Mapping[str, Issue]) -> None:
    table = plain_table("sign", "id", "title", whole=("id",), header=False, wide=True)
    for issue in known.values():
        table.add_row(mark(issue.severity), issue.id, issue.title)
    app.console.print(table)


def _show(app: App, explanation: Explanation) -> None:
    console = app.console
    cause = explanation.cause
    console.print(_verdict(explanation), soft_wrap=True)
    now = [p for p in explanation.problems if not p.overcome]
    main = [p for p in now if not p.follows or p is cause]
    certain = explanation.verdict == "cause"
    other = [p for p in main if p is not cause and not p.known and (certain or p.weak)]
    shown = [p for p in main if p is cause or (p not in other and p.finding.severity != "info")]
    for seen in shown:
        show(console, seen.finding, place=_place(seen))
    if explanation.verdict not in ("warnings", "no-error"):
        _list_seen(app, "other errors" if certain else "other lines that look like errors", other)
    _list_seen(app, "consequences of the above", [p for p in now if p.follows and p is not cause])
    past = [p for p in explanation.problems if p.overcome]
    _list_seen(app, "earlier errors, before the server last came up", past)
    for seen in main:
        if seen.finding.severity == "info" and seen not in shown:
            show(console, seen.finding, place=_place(seen))
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
        app.console.print(styled("{} next: {}", mark("info"), step))


def _show_start(app: App, explanation: Explanation) -> None:
    if explanation.facts:
        whole = ("sign", "name")
        titles = (*whole, "fact")
        table = plain_table(*titles, whole=whole, dim=("name",), header=False, wide=True)
        for name, fact in explanation.facts.items():
            table.add_row(mark("ok"), name, fact)
        app.console.print(table)
    for missing in explanation.missing:
        app.console.print(styled("{} not in the logs: {}", mark("unknown"), missing))


HEADLINES = {
    "cause": ("the cause", "red"),
    "likely": ("what happened; its cause is not certain", "red"),
    "unknown": ("not a known issue; the decisive line", "red"),
    "effects": ("only consequences are in these logs, not their cause", "red"),
    "unfinished": ("the server never took requests, and no error says why", "yellow"),
    "warnings": ("only warnings", "yellow"),
    "no-error": ("no error", "green"),
}


NOT_RECOGNISED = ("no error, and nothing of a start was recognised", "yellow")


def _verdict(explanation: Explanation) -> Text:

    lines = sum(log.lines for log in explanation.logs)
    names = [log.name for log in explanation.logs]
    named = ", ".join(names) if len(names) <= NAMED else f"{names[0]} and {len(names) - 1} more"
    headline = HEADLINES[explanation.verdict] if explanation.recognised else NOT_RECOGNISED
    verdict = painted(*headline)
    engine = f", {explanation.engine}" if explanation.engine else ""
    return styled(
        "{}  [dim]{}: {:,} line{}{}[/]", verdict, named, lines, "s" * (lines != 1), engine
    )


def _place(seen: Seen) -> str:
    times = f"  {seen.count} times" if seen.count > 1 else ""
    return f"{seen.where}  {seen.at.removesuffix('.000000')}{times}"
