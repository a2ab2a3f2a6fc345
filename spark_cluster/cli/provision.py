"""`provision`: from a fresh or drifted Spark to one that is ready to serve."""

from __future__ import annotations

import sys
from typing import TypedDict, Unpack

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.options import Changing, Command


class Given(TypedDict):
    """What is handed on to `Cluster.provision`."""

    allow_reboot: bool
    allow_restart: bool
    firmware: bool
    bandwidth: bool
    ask_password: bool
    password_env: str | None
    options: Changing


@click.command(cls=Command)
def command(app: App, **given: Unpack[Given]) -> None:
    """Make the nodes ready: keys and names, drivers, the link, SSH between the nodes, memory,
    clocks, Docker, caches. Running it again changes nothing.

    Drivers are installed only where the inventory pins versions. A node that fails does not stop
    the others; the exit status shows it at the end.

    Args:
        allow_reboot: Reboot a node when a change requires it.
        allow_restart: Restart Docker for new settings even if that stops the serving engine.
        firmware: Update firmware with fwupd (not the ConnectX-7's).
        bandwidth: Measure the link with ib_write_bw.
        ask_password: First contact: log in with a password where no key is accepted, and install
            yours.
        password_env (NAME): First contact: environment variable with the login password.
    """
    found = app.cluster.provision(**given)
    app.show(found, lambda app, _found: app.show_recap())
    if not found.ok:
        sys.exit(max(error.exit_code for error in found.errors.values()))
