"""`doctor`: what is wrong, why, and what to do, without changing anything."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import click

from spark_cluster.cli.app import App
from spark_cluster.errors import SparkClusterError

if TYPE_CHECKING:
    from rich.text import Text

    from spark_cluster.doctor.examine import Diagnosis
    from spark_cluster.doctor.finding import Finding
    from spark_cluster.issues.finding import Finding as Issue
    from spark_cluster.planning.pins import Pins
    from spark_cluster.recipe import Recipe
from spark_cluster.userfiles.recipe_file import Probe


@click.command()
@click.option(
    "--probe",
    is_flag=True,
    help="Also send traffic between the nodes, ask the endpoint, and try every port from here.",
)
@click.option(
    "--only", multiple=True, metavar="AREA", help="Only this area (or check); repeatable."
)
@click.pass_context
def command(ctx: click.Context, probe: bool, only: tuple[str, ...]) -> None:
    """Looks at every node for each trouble that is known, and compares the nodes.

    Changes nothing. One question a node; --probe adds full-size pings, transfers, a
    completion, and a scan of the nodes' ports from this machine.
    What could not be seen is unknown, which is not fine.

    Exit status 5 when something fails, 3 when a node cannot be reached.
    """
    from spark_cluster.doctor import examine
    from spark_cluster.doctor.probing import Question
    from spark_cluster.ports import EnginePorts

    app: App = ctx.obj
    examine.must_be_known(only)
    started = time.monotonic()
    recipe, pins = _recipe(app), _pins(app)
    with examine.Examination(app.inventory, app.nodes, recipe, pins) as examination:
        nodes = examination.observe()
        probed = None
        if probe and nodes:
            spans = recipe.ray.ports.spans if recipe else EnginePorts().spans
            scan = not only or bool({"network", "network.open-ports"} & set(only))
            asked = Question(_question(recipe), _key(app), scan=scan, spans=spans)
            probed = examination.probe(nodes, asked)
        found = [*examine.judge(nodes, probed), *examination.reachability()]
    diagnosis = examine.Diagnosis(tuple(examine.select(found, only)), examination.unreached)
    if app.as_json:
        known = [issue.document() for issue in _known_issues(diagnosis)]
        checks = [finding.document() for finding in diagnosis.findings]
        app.print_json({"checks": checks, "issues": known})
    else:
        _show(app, diagnosis, time.monotonic() - started)
    ctx.exit(diagnosis.exit_code)


def _known_issues(diagnosis: Diagnosis) -> list[Issue]:
    """What the catalogue knows of what was found."""
    from spark_cluster import issues

    return issues.live(diagnosis.findings)


def _recipe(app: App) -> Recipe | None:
    """What the inventory serves; doctor works without it too."""
    from spark_cluster.recipe import load_recipe

    name = app.inventory.serve.recipe
    with contextlib.suppress(SparkClusterError):
        return load_recipe(name, app.project) if name is not None else None
    return None


def _pins(app: App) -> Pins | None:
    """What is known of kernels and drivers, from the role `drivers`."""
    from spark_cluster.planning import pins

    folder = app.project.find("roles", "drivers")
    app.project.must_be_own(folder, "role drivers")
    with contextlib.suppress(SparkClusterError, OSError):
        return pins.load(folder / "pins.json")
    return None


def _question(recipe: Recipe | None) -> Probe:
    from spark_cluster.recipe import Recipe

    usual: Probe = Recipe.model_fields["probe"].default
    return usual if recipe is None else recipe.probe


def _key(app: App) -> str | None:
    from spark_cluster.engine.connections import ask_secret

    secret = app.inventory.serve.api_key
    return secret.read("the API key", ask_secret()) if secret else None


def _show(app: App, diagnosis: Diagnosis, seconds: float) -> None:
    from rich.table import Table

    from spark_cluster.cli.console import mark, painted

    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("")
    table.add_column("check", no_wrap=True)
    table.add_column("node", no_wrap=True)
    table.add_column("found", overflow="fold")
    shown = [f for f in diagnosis.findings if app.verbose or f.status != "ok"]
    for finding in shown:
        style = "dim" if finding.status == "ok" else None
        table.add_row(mark(finding.status), finding.id, finding.node, _text(finding), style=style)
    if shown:
        app.console.print(table)
    app.console.print(_summary(diagnosis, seconds), soft_wrap=True)
    known = [issue.id for issue in _known_issues(diagnosis)]
    if known:
        text = f"known issues: {', '.join(known)} (explain --about ID)"
        app.console.print(painted(text, "dim"))


def _text(finding: Finding) -> Text:
    from spark_cluster.cli.console import joined, painted

    lines = [painted(finding.found)]
    if finding.cause:
        lines.append(painted(finding.cause, "dim"))
    if finding.fix:
        lines.append(painted(finding.fix, "cyan"))
    if finding.status == "unknown":
        lines.append(painted(f"so it is not known whether {finding.title}", "dim"))
    return joined(lines)


def _summary(diagnosis: Diagnosis, seconds: float) -> Text:
    from spark_cluster.cli.console import joined, painted, styled

    counts = {status: diagnosis.count(status) for status in ("fail", "warn", "unknown", "ok")}
    styles = {"fail": "red", "warn": "yellow", "unknown": "magenta", "ok": "green"}
    parts = [painted(f"{n} {s}", styles[s]) for s, n in counts.items() if n or s == "ok"]
    text = styled("{} [dim]in {:.1f} s[/]", joined(parts, ", "), seconds)
    if diagnosis.unreached:
        text += painted(f"; the nodes were not compared with {', '.join(diagnosis.unreached)}")
    return text
