"""`bench suites`: what can be measured, and how long it takes."""

from __future__ import annotations

from typing import Any

import click

from spark_cluster.bench.expansion import Duration, Expansion, Step, estimate, expand, measurable
from spark_cluster.bench.references import planned_speeds
from spark_cluster.bench.suite import Suite, load_suite
from spark_cluster.cli.app import App
from spark_cluster.cli.console import painted, plain_table, styled
from spark_cluster.cli.options import Command
from spark_cluster.config.recipes import load_recipe
from spark_cluster.errors import SparkClusterError


@click.command(cls=Command)
def suites(app: App, *, name: str | None, recipes: tuple[str, ...]) -> None:
    """List the suites, or show the servers and cells of one and how long it takes.

    NAME is the name of a suite, or a file. Nothing is started. Your own suites, in the folder
    suites/, take precedence over shipped ones of the same name.

    Args:
        recipes (--recipe NAME): Recipe to measure, instead of the suite's; repeatable.
    """
    if name is None:
        _list(app)
        return
    suite = load_suite(name, app.project)
    found = _expanded(app, suite, recipes)
    speeds = planned_speeds(app.project)
    expected = estimate(found, speeds, suite.settings, verify=suite.verify)
    if app.as_json:
        about = {"suite": suite.name, "description": suite.description, "nodes": found.nodes}
        plan = {"setups": found.setups, "cells": found.cells, "estimate": expected}
        app.print_json({**about, **plan})
    else:
        _show(app, suite, found, expected)


def _expanded(app: App, suite: Suite, names: tuple[str, ...]) -> Expansion:
    chosen = names or tuple(suite.recipes)
    if not chosen and not app.inventory_is_missing and app.inventory.serve.recipe:
        chosen = (app.inventory.serve.recipe,)
    known = {one: load_recipe(one, app.project) for one in chosen}
    return measurable(suite, expand(suite, known, chosen))


def _list(app: App) -> None:
    rows = []
    titles = ("suite", "what it answers")
    table = plain_table(*titles, whole=titles[:1], fold=titles[1:], wide=True)
    for name, path in app.project.list("suites").items():
        own = not path.is_relative_to(app.project.shipped / "suites")
        shown = styled("{}[cyan]{}[/]", name, " (yours)" if own else "")
        row: dict[str, Any] = {"name": name, "path": str(path), "own": own}
        try:
            suite = load_suite(path, app.project)
        except SparkClusterError as error:
            rows.append({**row, "valid": False, "description": "", "error": error.to_dict()})
            table.add_row(shown, painted(f"invalid: {error}", "red"))
            continue
        about = suite.description
        rows.append({**row, "valid": True, "description": about, "error": None})
        table.add_row(shown, about)
    if app.as_json:
        app.print_json({"suites": rows})
    else:
        app.console.print(table)


def _show(app: App, suite: Suite, found: Expansion, expected: Duration) -> None:
    console = app.console
    measured = [cell for cell in found.cells if not cell.skip]
    cells = _count(len(measured), "cell")
    servers = _count(sum(not setup.skip for setup in found.setups), "server")
    verdict = styled("[bold]{}[/]: {} on {}, {}", suite.name, cells, servers, _total(expected))
    console.print(verdict)
    console.print(painted(suite.description, "dim"))
    titles = ("nodes", "cells", "runs")
    table = plain_table(
        "server", *titles, "time", right=titles, fold=("server",), whole=("time",), wide=True
    )
    for step, seconds in zip(found.steps, expected.steps, strict=True):
        table.add_row(*_row(step, seconds))
    console.print(table)
    for reason in dict.fromkeys(cell.skip for cell in found.cells if cell.skip):
        left_out = sum(cell.skip == reason for cell in found.cells)
        console.print(styled("[yellow]{} left out:[/] {}", _count(left_out, "cell"), reason))
    if app.verbose:
        for cell in found.cells:
            console.print(f"  {cell.id}  {_count(cell.runs, 'run')}", soft_wrap=True)
    console.print(painted(f"Assumed: {'; '.join(expected.assumptions)}.", "dim"))


def _row(step: Step, seconds: float | None) -> tuple[str, ...]:
    setup, live = step.setup, [cell for cell in step.cells if not cell.skip]
    turn = f" (turn {step.turn})" if {c.turn for c in step.cells} - {1} else ""
    runs = sorted({cell.runs for cell in live})
    return (
        setup.id + turn,
        str(setup.nodes),
        str(len(live)),
        "-".join(map(str, dict.fromkeys((runs[0], runs[-1])))) if runs else "",
        "not known" if seconds is None else _time(seconds) if live else "left out",
    )


def _total(expected: Duration) -> str:
    if expected.unknown and not expected.seconds:
        return "no planned speed, so no estimate"
    more = f" and what is not known of {_count(len(expected.unknown), 'server')}"
    return f"about {_time(expected.seconds)}{more if expected.unknown else ''}"


def _time(seconds: float) -> str:
    minutes = max(1, round(seconds / 60))
    return f"{minutes // 60} h {minutes % 60:02} min" if minutes >= 60 else f"{minutes} min"


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
