"""Ways to use the endpoint: `clients`, `keys` and `tunnel`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import click

from spark_cluster.cli.app import App, ended_by_signals
from spark_cluster.cli.console import painted, plain_table, visible
from spark_cluster.cli.display import tell
from spark_cluster.cli.options import DeclaredCommand, DeclaredGroup, Port
from spark_cluster.config.folders import state_folder
from spark_cluster.engine import client_target, proxy
from spark_cluster.engine.client_target import (
    CLIENTS,
    ClientTarget,
    Snippet,
    ask_head,
    current,
    keep_open,
    snippets,
    target_of,
    url_on_head,
    write_certificate,
)
from spark_cluster.errors import UsageError
from spark_cluster.runner.dialer import SshConnection

if TYPE_CHECKING:
    from spark_cluster.config.inventory import InventoryNode


@click.command(cls=DeclaredCommand, words={"CLIENTS": ", ".join(CLIENTS)})
def clients(
    app: App,
    *,
    name: Annotated[Annotated[str, click.Choice(list(CLIENTS))] | None, {"metavar": "[CLIENT]"}],
    tunnel: bool,
    port: Port | None,
    show_key: bool,
) -> None:
    """Print how clients use the endpoint: CLIENTS.

    The head is asked what serves: address, model, context length, whether a key is needed. With
    the name of a CLIENT only its text is printed, to be written to a file; notes go to standard
    error. A certificate that was made on the head is saved on this machine, for clients to trust.

    Args:
        tunnel: Use the address of `spark-cluster tunnel` on this machine.
        port (PORT): The tunnel's port on this machine (default: the endpoint's own).
        show_key: Print the API key itself instead of its variable.
    """
    target = _target(app, port, tunnel=tunnel, show_key=show_key)
    made = snippets(target)
    if name is not None:
        chosen = [snippet for snippet in made if snippet.client == name]
        if not chosen:
            kinds = ", ".join(sorted(CLIENTS[name]["kinds"]))
            raise UsageError(
                f"{target.model} is a model for {target.kind}; {name} is for {kinds}",
                hint=f"there are {', '.join(snippet.client for snippet in made)}",
            )
        made = chosen
    if app.as_json:
        app.print_json({"endpoint": target, "clients": made})
    elif name is not None:
        click.echo(visible(made[0].text), nl=False)
        for note in (*target.notes, *made[0].notes):
            tell(f"# {note}")
    else:
        _show_clients(app, target, made)


def _target(app: App, port: int | None, *, tunnel: bool, show_key: bool) -> ClientTarget:
    """Ask the head, and save its certificate."""
    head, serve = app.inventory.head, app.inventory.serve
    with app.cluster.dialer.session(head, "clients") as session:
        found = current(session, head.name)
    ca_file = ""
    if found.certificate:
        ca_file = str(write_certificate(state_folder(), head.name, found.certificate))
    key = ""
    if show_key and found.access.api_key:
        key = app.inventory.api_key() or ""
    options = {"tunnel": tunnel or port is not None}
    return target_of(found, serve, head.name, ca_file=ca_file, port=port, key=key, **options)


def _show_clients(app: App, target: ClientTarget, made: list[Snippet]) -> None:

    app.console.say("[bold]{}[/] at [bold cyan]{}[/]", target.model, target.url)
    length = "" if target.context is None else f"up to {target.context:,} tokens a request; "
    key = f"with the API key in {target.key_variable}" if target.key_variable else "without a key"
    ca_file = f"; trust {target.ca_file}" if target.ca_file else ""
    app.console.print(painted(f"{length}{key}{ca_file}", "dim"))
    for note in target.notes:
        app.console.print(painted(note, "yellow"))
    for snippet in made:
        file = f"  {snippet.file}" if snippet.file else ""
        app.console.say("\n[bold]{}[/][dim]{}[/]", snippet.title, file)
        for note in snippet.notes:
            app.console.print(painted(f"# {note}", "dim"))
        click.echo(visible(snippet.text), nl=False)


@click.group(cls=DeclaredGroup)
def keys() -> None:
    """Add, list and revoke API keys of the endpoint by name, while it serves.

    They work next to the inventory's `serve.api_key`, and survive `down` and `up`. The head keeps a
    SHA-256 digest of each. The proxy's journal names the key of every request.
    """


@keys.command()
def add(app: App, *, name: str) -> None:
    """Make a key and print it; it is shown only now, and stored nowhere.

    It works at once: neither the engine nor the proxy is restarted.
    """
    proxy.check_name(name)
    key = proxy.new_key()
    day = datetime.now(UTC).date().isoformat()
    head = [app.inventory.head]
    with app.cluster.play(f"keys add {name}", head, gather_facts=False) as run:
        proxy.add(run.open(), name, key, day)
    app.show({"name": name, "key": key, "added": day}, f"{name}'s key, shown only now: {key}")
    if not app.as_json:
        tell(f"it is in force; `{app.command('clients')}` shows how programs use it")


@keys.command("list")
def list_(app: App) -> None:
    """List the named keys: the day on which each was added, and whether it is in force.

    After an interrupted run the proxy may accept a key that the head's file no longer has. It is
    listed as in force until the proxy restarts; `keys revoke` ends it at once.
    """
    head = app.inventory.head
    with app.cluster.dialer.session(head, "keys list") as session:
        found = proxy.listed(session, head.name)
    app.show({"keys": found}, lambda app, _: _show_keys(app, found))


def _show_keys(app: App, found: list[proxy.NamedKey]) -> None:
    if not found:
        app.console.print(f"there are no named keys; {app.command('keys add NAME')} makes one")
        return
    table = plain_table("name", "added", "in force")
    for key in found:
        kept = "yes" if key.kept else "until the proxy restarts"
        table.add_row(key.name, key.added, kept if key.in_force else "no")
    app.console.print(table)
    app.console.print(painted("besides the inventory's own key (serve.api_key)", "dim"))


@keys.command()
def revoke(app: App, *, name: str) -> None:
    """Refuse a key from now on; requests in progress are completed."""
    head = [app.inventory.head]
    with app.cluster.play(f"keys revoke {name}", head, gather_facts=False) as run:
        proxy.revoke(run.open(), name)
    app.show({"name": name, "revoked": True}, f"{name} is revoked")


@click.command(cls=DeclaredCommand)
def tunnel(
    app: App,
    *,
    port: Port | None,
    remote_port: Port | None,
    install: bool,
    remove: bool,
    as_json: bool,
) -> None:
    """Reach the endpoint at a port of this machine, over SSH, until Ctrl-C.

    The port is on the loopback: only programs of this machine can use it. A dropped connection is
    re-established after 1 second, then 2, 4 and so on, up to 30. With --install it runs as a
    service.

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
            f"{head.name} is {here}: no tunnel is needed",
            hint="`spark-cluster status` shows the endpoint's address"
            if head.is_this_machine
            else f"`nsenter --net --target {process} PROGRAM` runs a program in its network",
        )
    port = port or app.inventory.serve.port
    if install or remove:
        _service(app, head, port, install=install)
    else:
        _keep_tunnel(app, head, port)


def _keep_tunnel(app: App, head: InventoryNode, port: int) -> None:
    def find(connection: SshConnection) -> str:
        access = ask_head(connection) if app.cluster.port is None else None
        return url_on_head(access, app.inventory.serve, head)

    events = keep_open(app.cluster.dialer.target(head), find, port)
    with contextlib.suppress(KeyboardInterrupt), ended_by_signals():
        for event in events:
            if app.as_json:
                click.echo(json.dumps(asdict(event)))
            else:
                (app.console.print if event.event == "open" else tell)(str(event))
                if event.event == "open":
                    shows = app.command(f"clients --port {port}")
                    tell(f"Ctrl-C ends it; `{shows}` shows how to use it")
                if event.hint:
                    tell(f"  {app.to_paste(event.hint)}")


def _service(app: App, head: InventoryNode, port: int, *, install: bool) -> None:
    folder = client_target.unit_folder(dict(os.environ), Path.home())
    name = client_target.unit_name(head.name)
    if install:
        path = client_target.install(folder, head.name, _argv(app, port))
        changed, file = True, str(path)
        text = (
            f"{name} is started, now and at each login: http://127.0.0.1:{port}\n"
            f"  journalctl --user -u {name} shows what it does; "
            "`loginctl enable-linger` starts it at boot"
        )
    else:
        changed, file = client_target.remove(folder, head.name), str(folder / name)
        text = f"{name} is stopped and removed" if changed else f"{name} is not installed"
    app.show({"changed": changed, "unit": name, "file": file}, text)


def _argv(app: App, port: int) -> list[str]:
    """Return the command that the service runs: this program with the same inventory."""
    named = app.cluster.named
    given = [] if named is None else ["--inventory", _absolute(str(named))]
    project = ["--project", str(app.project.folder)]
    program = [sys.executable, "-P", "-m", "spark_cluster"]
    port_there = app.cluster.port
    remote = [] if port_there is None else ["--remote-port", str(port_there)]
    return [*program, *project, *given, "tunnel", "--port", str(port), *remote]


def _absolute(name: str) -> str:
    """Return a file's absolute path; the name of a shipped inventory stays."""
    path = Path(name).expanduser()
    return str(path.absolute()) if path.is_file() else name
