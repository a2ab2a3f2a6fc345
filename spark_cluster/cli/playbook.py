"""`playbook`: run any playbook."""

from __future__ import annotations

import click

from spark_cluster.cli.app import App, changing
from spark_cluster.runner.options import Options


@click.command()
@click.argument("file")
@changing
@click.pass_obj
def command(app: App, file: str, options: Options) -> None:
    """Run a playbook: a Python file with a function main(play), or the name of one in playbooks/.

    What main returns is in the JSON document as `result`.
    """
    found = app.cluster.playbook(file, options=options)
    app.show(found, lambda app, _found: app.show_recap())
    for error in found.errors.values():
        raise SystemExit(error.exit_code)
