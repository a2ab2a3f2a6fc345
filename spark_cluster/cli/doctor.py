"""`doctor`: what is wrong, why, and what to do, without changing anything."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from spark_cluster.cli import process_start
from spark_cluster.cli.api import probe_of, usual_recipe
from spark_cluster.cli.app import App
from spark_cluster.cli.console import joined, mark, painted, plain_table, styled
from spark_cluster.cli.options import Command
from spark_cluster.config.document import as_json
from spark_cluster.config.ports import EnginePorts
from spark_cluster.errors import SparkClusterError

if TYPE_CHECKING:
    from rich.text import Text

    from spark_cluster.config.pins import Pins
    from spark_cluster.config.recipe import Recipe
    from spark_cluster.doctor.examine import Diagnosis
    from spark_cluster.doctor.verdict import CheckResult


@click.command(cls=Command)
def command(app: App, *, probe: bool, only: tuple[str, ...]) -> int:
    """Check every node for all known issues, and compare the nodes; nothing is changed.

    Each node is asked once; --probe adds full-size pings, transfers, a completion, and a scan of
    the nodes' ports from this machine. What could not be seen is reported as unknown.

    Exit status 5 when something fails, 3 when a node cannot be reached.

    Args:
        probe: Also measure the link, ask the endpoint, and try every port from this machine.
        only (AREA): Run only the checks of this area, or this check; repeatable.
    """
    diagnosis = diagnose(app, only, probe=probe)
    app.show(document(diagnosis), lambda app, _: _show(app, diagnosis))
    return diagnosis.exit_code


def diagnose(app: App, only: Sequence[str] = (), *, probe: bool = False) -> Diagnosis:
    """Ask the selected nodes, and judge their answers.

    Args:
        only: areas or checks; by default all.
        probe: also measure the link, ask the endpoint, and try every port.

    Raises:
        UsageError: there is no such check.
    """
    from spark_cluster.doctor import examine
    from spark_cluster.doctor.probing import Question
    from spark_cluster.issues.entries import catalogue
    from spark_cluster.runner.parallel import start

    examine.must_be_known(only)
    recipe, pins = _served_recipe(app), _known_pins(app)
    with examine.Examination(
        app.inventory, app.nodes, app.cluster.dialer, recipe, pins
    ) as examination:
        app.import_meanwhile()
        start(catalogue)  # reads the files of the catalogue meanwhile
        nodes = examination.observe()
        probed = None
        if probe and nodes:
            spans = recipe.ray.ports.spans if recipe else EnginePorts().spans
            scan = not only or bool({"network", "network.open-ports"} & set(only))
            asked = Question(probe_of(recipe), app.inventory.api_key(), scan=scan, spans=spans)
            probed = examination.probe(nodes, asked)
        found = [*examine.judge(nodes, probed), *examination.reachability()]
    return examine.Diagnosis(tuple(examine.select(found, only)), examination.unreached)


def document(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return the JSON document of a diagnosis."""
    return {"checks": as_json(diagnosis.results), "issues": as_json(diagnosis.issues)}


def _served_recipe(app: App) -> Recipe | None:
    """Return the recipe that the inventory serves; doctor works without it too."""
    if app.inventory.serve.recipe is None:  # what is wrong with the inventory itself is an error
        return None
    with contextlib.suppress(SparkClusterError):
        return usual_recipe(app.cluster)
    return None


def _known_pins(app: App) -> Pins | None:
    """Return the known combinations of kernel and driver, from the role `drivers`."""
    from spark_cluster.config import pins

    folder = app.project.find("roles", "drivers")
    app.project.must_be_own(folder, "role drivers")
    with contextlib.suppress(SparkClusterError, OSError):
        return pins.load(folder / "pins.json")
    return None


def _show(app: App, diagnosis: Diagnosis) -> None:
    titles = ("", "check", "node", "found")
    table = plain_table(*titles, whole=("check", "node"), fold=("found",), wide=True)
    shown = [f for f in diagnosis.results if app.verbose or f.status != "ok"]
    for result in shown:
        style = "dim" if result.status == "ok" else None
        table.add_row(mark(result.status), result.id, result.node, _text(result), style=style)
    app.console.print(_summary(diagnosis, process_start.elapsed()), soft_wrap=True)
    if shown:
        app.console.print(table)
    known = [issue.id for issue in diagnosis.issues]
    if known:
        text = f"known issues: {', '.join(known)} (explain --about ID)"
        app.console.print(painted(text, "dim"))


def _text(result: CheckResult) -> Text:

    lines = [painted(result.found)]
    if result.cause:
        lines.append(painted(result.cause, "dim"))
    if result.fix:
        lines.append(painted(result.fix, "cyan"))
    if result.status == "unknown":
        lines.append(painted(f"not known: whether {result.title}", "dim"))
    return joined(lines)


def _summary(diagnosis: Diagnosis, seconds: float) -> Text:

    counts = {status: diagnosis.count(status) for status in ("fail", "warn", "unknown", "ok")}
    styles = {"fail": "red", "warn": "yellow", "unknown": "magenta", "ok": "green"}
    parts = [painted(f"{n} {s}", styles[s]) for s, n in counts.items() if n or s == "ok"]
    text = styled("{} [dim]in {:.1f} s[/]", joined(parts, ", "), seconds)
    if diagnosis.unreached:
        text += painted(f"; not compared: {', '.join(diagnosis.unreached)} (not reachable)")
    return text
