"""`tunnel`: a port of this machine to the endpoint, over SSH."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.ended_by_signals import ended_by_signals
from spark_cluster.cli.options import Command, Port
from spark_cluster.cli.visible import visible
from spark_cluster.engine import endpoint_tunnel
from spark_cluster.engine.endpoint_tunnel import ask_head, keep_open, url_on_head
from spark_cluster.errors import UsageError
from spark_cluster.runner.dialer import SshConnection

if TYPE_CHECKING:
    from spark_cluster.config.inventory import InventoryNode


@click.command(cls=Command)
def command(
    app: App,
    *,
    port: Port | None,
    remote_port: Port | None,
    install: bool,
    remove: bool,
    as_json: bool,
) -> None:
    """Reach the endpoint at a port of this machine, over SSH, until Ctrl-C.

    The port is on the loopback: only programs of this machine can use it. A connection that is cut
    is made again, after 1 second and then at most every 30. With --install it runs as a service.

    Args:
        port (PORT): Port of this machine (default: the endpoint's own).
        remote_port (PORT): Port of the endpoint on the head (default: the proxy's, else the
            inventory's).
        install: Make it a systemd service of your user (Linux).
        remove: Stop and remove that service.
        as_json (--json): Print one JSON line for each event.
    """
    app.as_json = app.as_json or as_json
    if install and remove:
        raise UsageError("--install and --remove contradict each other", hint="leave one out")
    app.cluster.port = remote_port
    head = app.inventory.head
    if head.is_local:
        here = "this machine" if head.is_this_machine else "on this machine"
        process = f"$(cut -d' ' -f1 {head.namespaces_of})"
        raise UsageError(
            f"{head.name} is {here}: there is nothing to tunnel to",
            hint="`spark-cluster status` shows the endpoint's address"
            if head.is_this_machine
            else f"`nsenter --net --target {process} PROGRAM` runs a program in its network",
        )
    port = port or app.inventory.serve.port
    if install or remove:
        _service(app, head, port, install=install)
    else:
        _run(app, head, port)


def _run(app: App, head: InventoryNode, port: int) -> None:
    def find(connection: SshConnection) -> str:
        access = ask_head(connection) if app.cluster.port is None else None
        return url_on_head(access, app.inventory.serve, head)

    events = keep_open(app.cluster.dialer.target(head), find, port)
    with contextlib.suppress(KeyboardInterrupt), ended_by_signals():
        for event in events:
            if app.as_json:
                click.echo(json.dumps(asdict(event)))
            else:
                click.echo(visible(str(event)), err=event.event != "open")
                if event.hint:
                    click.echo(visible(f"  {event.hint}"), err=True)
            sys.stdout.flush()


def _service(app: App, head: InventoryNode, port: int, *, install: bool) -> None:
    folder = endpoint_tunnel.unit_folder(dict(os.environ), Path.home())
    name = endpoint_tunnel.unit_name(head.name)
    if install:
        path = endpoint_tunnel.install(folder, head.name, _argv(app, port))
        changed, file = True, str(path)
        text = (
            f"{name} is started, now and at each login: http://127.0.0.1:{port}\n"
            f"  journalctl --user -u {name} shows what it does; "
            "`loginctl enable-linger` starts it at boot"
        )
    else:
        changed, file = endpoint_tunnel.remove(folder, head.name), str(folder / name)
        text = f"{name} is stopped and removed" if changed else f"{name} is not installed"
    if app.as_json:
        app.print_json({"changed": changed, "unit": name, "file": file})
    else:
        click.echo(visible(text))


def _argv(app: App, port: int) -> list[str]:
    """Return the command that the service runs: this program with the same inventory."""
    named = app.cluster.named
    given = [] if named is None else ["--inventory", _absolute(str(named))]
    project = ["--project", str(app.project.folder)]
    program = [sys.executable, "-m", "spark_cluster"]
    port_there = app.cluster.port
    remote = [] if port_there is None else ["--remote-port", str(port_there)]
    return [*program, *project, *given, "tunnel", "--port", str(port), *remote]


def _absolute(name: str) -> str:
    """Return a file's absolute path; the name of a shipped inventory stays."""
    path = Path(name).expanduser()
    return str(path.absolute()) if path.is_file() else name
