"""`clients`: ready-made commands and configurations for the endpoint that serves now."""

from __future__ import annotations

from typing import Annotated

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.console import painted, styled
from spark_cluster.cli.options import Command, Port
from spark_cluster.cli.visible import visible
from spark_cluster.config.caches import state_folder
from spark_cluster.engine.client_target import (
    CLIENTS,
    ClientTarget,
    Snippet,
    current,
    snippets,
    target_of,
    write_certificate,
)
from spark_cluster.errors import UsageError


@click.command(cls=Command)
def command(
    app: App,
    *,
    name: Annotated[Annotated[str, click.Choice(list(CLIENTS))] | None, {"metavar": "[CLIENT]"}],
    tunnel: bool,
    port: Port | None,
    show_key: bool,
) -> None:
    """Print how clients use the endpoint: curl, python, env, open-webui, opencode, continue.

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
            kinds = ", ".join(sorted(CLIENTS[name][2]))
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
            click.echo(visible(f"# {note}"), err=True)
    else:
        _show(app, target, made)


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


def _show(app: App, target: ClientTarget, made: list[Snippet]) -> None:

    console = app.console
    console.print(styled("[bold]{}[/] at [bold cyan]{}[/]", target.model, target.url))
    length = "" if target.context is None else f"up to {target.context:,} tokens a request; "
    key = f"with the API key in {target.key_variable}" if target.key_variable else "without a key"
    ca_file = f"; trust {target.ca_file}" if target.ca_file else ""
    console.print(painted(f"{length}{key}{ca_file}", "dim"), soft_wrap=True)
    for note in target.notes:
        console.print(painted(note, "yellow"), soft_wrap=True)
    for snippet in made:
        file = f"  {snippet.file}" if snippet.file else ""
        console.print(styled("\n[bold]{}[/][dim]{}[/]", snippet.title, file))
        for note in snippet.notes:
            console.print(painted(f"# {note}", "dim"), soft_wrap=True)
        click.echo(visible(snippet.text), nl=False)
