"""`playbook`: run any playbook."""

from __future__ import annotations

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.options import Changing, Command


@click.command(cls=Command)
def command(app: App, *, file: str, options: Changing) -> None:
    """Run a playbook: a Python file with a function main(play), or the name of one in playbooks/.

    What main returns is in the JSON document as `result`.
    """
    found = app.cluster.playbook(file, options=options)
    app.show(found, lambda app, _found: app.show_recap())
    for error in found.errors.values():
        raise SystemExit(error.exit_code)
