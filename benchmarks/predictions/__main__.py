"""`python -m benchmarks.predictions`: how good the predicted speeds are, by situation.

Each family is predicted by constants that were fitted without it. `--write` writes what the product
reads (`plan/data/fitted.json`) and prints the constants of a fit to all runs that are not held
out; they stand in `plan/estimate.py`.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from benchmarks.predictions.evaluate import SITUATIONS, Evaluation, Outcome, evaluate
from spark_cluster.plan.estimate import Constants

FITTED = Path(__file__).parents[2] / "spark_cluster" / "plan" / "data" / "fitted.json"

WANTED = {
    "decode": 0.10,
    "users": 0.12,
    "tp": 0.14,
    "tp users": 0.15,
    "drafter": 0.14,
    "drafted": 0.40,
    "prefill": 0.15,
}
"""Mean absolute error at most."""

COVERED = 0.90
"""Share of the points whose range holds what was measured, at least."""

TITLES = {
    "decode": "one Spark, one user",
    "users": "one Spark, several users",
    "tp": "two Sparks, one user",
    "tp users": "two Sparks, several users",
    "drafter": "with a drafter",
    "drafted": "acceptance not said",
    "prefill": "prefill",
}


def row(found: Sequence[Outcome]) -> tuple[int, float, float, float]:
    """Return points, mean absolute error, coverage and typical width (highest over lowest)."""
    return (
        len(found),
        statistics.fmean(abs(one.error) for one in found),
        statistics.fmean(one.covered for one in found),
        statistics.median(one.high / one.low for one in found),
    )


def by_situation(found: Sequence[Outcome]) -> dict[str, tuple[int, float, float, float]]:
    """Return the figures of each situation that has points."""
    groups = {s: [o for o in found if o.measured.situation == s] for s in SITUATIONS}
    return {situation: row(some) for situation, some in groups.items() if some}


@click.command(help=__doc__)
@click.option("--write", is_flag=True, help="Write fitted.json, and print the fitted constants.")
@click.option("--points", is_flag=True, help="Print every point.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def main(write: bool, points: bool, as_json: bool) -> None:
    """Evaluate, and print."""
    found = evaluate()
    if write:
        FITTED.write_text(json.dumps(found.to_dict(), indent=1, sort_keys=True) + "\n")
        usual = Constants()
        for field in fields(Constants):
            value = getattr(found.shipped, field.name)
            if value != getattr(usual, field.name):
                click.echo(f"{field.name}: {getattr(usual, field.name)} -> {value}")
    if as_json:
        names = ("points", "mean_error", "coverage", "width")
        left_out = {
            s: dict(zip(names, r, strict=True)) for s, r in by_situation(found.left_out).items()
        }
        click.echo(json.dumps(left_out, indent=2))
        return
    show(Console(), found, points=points)


def show(console: Console, found: Evaluation, *, points: bool) -> None:
    """Print the tables."""
    console.print(table("Each family predicted without its own runs", found.left_out))
    console.print(table("Of these, runs that no fit ever used", found.held_out))
    if points:
        for one in found.left_out:
            m = one.measured
            where = f"{m.point.prompt or m.point.context} tokens, {m.point.users} users"
            mark = " " if one.covered else "!"
            console.print(f"{mark} {one.error:+5.0%}  {m.situation:9} {m.run.id}, {where}")


def table(title: str, found: Sequence[Outcome]) -> Table:
    """Return one table."""
    made = Table(title=title, title_justify="left", box=None, padding=(0, 2, 0, 0))
    for name in ("", "points", "mean error", "wanted", "in the range", "highest / lowest"):
        made.add_column(name, justify="right" if name else "left")
    for situation, (count, error, covered, width) in by_situation(found).items():
        limit = WANTED[situation]
        style = None if error <= limit and covered >= COVERED else "yellow"
        cells = (str(count), f"{error:.1%}", f"{limit:.0%}", f"{covered:.0%}", f"{width:.2f}")
        made.add_row(TITLES[situation], *cells, style=style)
    return made


if __name__ == "__main__":
    main()
