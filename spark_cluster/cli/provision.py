"""`provision`: from a fresh or drifted Spark to one that is ready to serve."""

from __future__ import annotations

import sys
from typing import Any

import click

from spark_cluster.cli.app import App, changing


@click.command()
@click.option("--allow-reboot", is_flag=True, help="Reboot a node when a change requires it.")
@click.option(
    "--allow-restart",
    is_flag=True,
    help="Restart Docker for new settings even if that stops the serving engine.",
)
@click.option("--firmware", is_flag=True, help="Update firmware with fwupd (not the ConnectX-7's).")
@click.option("--bandwidth", is_flag=True, help="Measure the link with ib_write_bw.")
@click.option(
    "--ask-password",
    is_flag=True,
    help="First contact: log in with a password where no key is accepted, and install yours.",
)
@click.option(
    "--password-env",
    metavar="NAME",
    help="First contact: environment variable with the login password.",
)
@changing
@click.pass_obj
def command(app: App, /, **given: Any) -> None:
    """Make the nodes ready: keys and names, drivers, the link, SSH between the nodes, memory,
    clocks, Docker, caches. Running it again changes nothing.

    Drivers are installed only where the inventory pins versions. A node that fails does not stop
    the others; the exit status shows it at the end.
    """
    found = app.cluster.provision(**given)
    app.show(found, lambda app, _found: app.show_recap())
    if not found.ok:
        sys.exit(max(error.exit_code for error in found.errors.values()))
