"""`supervise`: a unit on the head that restarts a dead engine."""

from __future__ import annotations

import time
from typing import Literal

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.console import painted, styled
from spark_cluster.cli.options import Changing, Group
from spark_cluster.engine import supervision
from spark_cluster.runner.events import Options

SHOWN = 10
"""Events that are shown; --json has all of them."""


@click.group(cls=Group)
def command() -> None:
    """Restart a dead engine from the head itself, without the laptop: install, remove, status."""


@command.command()
def install(app: App, *, at_boot: bool, options: Changing) -> None:
    """Install the supervision on the head, as a systemd unit, and start it.

    It asks the server for a real completion, stops a server that gives none, waits until its
    memory is back, and starts it again: after pauses that grow, and five times an hour at most.

    Args:
        at_boot: Start the supervision at boot, too.
    """
    _apply(app, "present", options, at_boot=at_boot)


@command.command()
def remove(app: App, *, options: Changing) -> None:
    """Remove the supervision; what serves stays as it is."""
    _apply(app, "absent", options, at_boot=False)


@command.command()
def status(app: App) -> None:
    """Show what the supervision knows of the server, and what it did last."""
    app.import_meanwhile()
    head = app.inventory.head
    with app.cluster.dialer.session(head, "supervise") as session:
        found = supervision.report(session)
    app.show(found, _show)


def _apply(
    app: App,
    state: Literal["present", "absent"],
    options: Options,
    *,
    at_boot: bool,
) -> None:
    name = "install" if state == "present" else "remove"
    head = app.inventory.head
    with app.play(f"supervise {name}", [head], options, gather_facts=False) as run:
        playbook = app.project.load_playbook("supervise")
        found = playbook.function(run.open(), state=state, at_boot=at_boot)
    if app.as_json:
        app.print_json(run.document(**({"supervision": found} if found else {})))
    else:
        app.show_recap()
        if found is not None:
            _show(app, found)


def _show(app: App, found: supervision.Supervision) -> None:
    console = app.console
    if not found.installed:
        console.print("not installed: `spark-cluster supervise install` installs it on the head")
        return
    boot = "started at boot" if found.at_boot else "not started at boot (install --at-boot)"
    console.print(styled("supervision: [bold]{}[/], {}", found.active, boot))
    why = f": {found.state.reason}" if found.state.reason else ""
    console.print(styled("server: [bold]{}[/]{}", found.state.phase, why), soft_wrap=True)
    for problem in found.problems:
        console.print(styled("[yellow]![/] {}", problem), soft_wrap=True)
    for event in found.events[-SHOWN:]:
        moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event.at))
        console.print(painted(f"{moment}  {event.text}", "dim"), soft_wrap=True)
