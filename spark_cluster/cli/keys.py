"""`keys`: API keys of the endpoint by name."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.console import plain_table
from spark_cluster.cli.options import Group
from spark_cluster.cli.visible import visible
from spark_cluster.engine import named_keys


@click.group(cls=Group)
def command() -> None:
    """Add, list and revoke API keys of the endpoint by name, while it serves.

    They are next to the inventory's `serve.api_key`, and stay over `down` and `up`. The head keeps
    a SHA-256 digest of each. The proxy's journal names the key of every request.
    """


@command.command()
def add(app: App, *, name: str) -> None:
    """Make a key, and print it; it is shown this once and kept nowhere.

    It is in force at once: neither the engine nor the proxy is restarted.
    """
    named_keys.check_name(name)
    key = named_keys.new_key()
    day = datetime.now(UTC).date().isoformat()
    head = [app.inventory.head]
    with app.play(f"keys add {name}", head, gather_facts=False) as run:
        named_keys.add(run.open(), name, key, day)
    if app.as_json:
        app.print_json({"name": name, "key": key, "added": day})
    else:
        click.echo(visible(f"{name}: {key}"))
        click.echo("it is in force, and is not shown again", err=True)


@command.command("list")
def list_(app: App) -> None:
    """List the named keys: the day on which each was added, and whether it is in force.

    A key that the running proxy accepts and the head's file no longer has, because a run was cut,
    is listed as in force until the proxy restarts; `keys revoke` ends it at once.
    """
    head = app.inventory.head
    with app.cluster.dialer.session(head, "keys list") as session:
        found = named_keys.listed(session, head.name)
    if app.as_json:
        app.print_json({"keys": found})
    elif not found:
        app.console.print("there are no named keys; spark-cluster keys add NAME makes one")
    else:
        _show(app, found)


def _show(app: App, found: list[named_keys.NamedKey]) -> None:
    table = plain_table("name", "added", "in force")
    for key in found:
        kept = "yes" if key.kept else "until the proxy restarts"
        table.add_row(key.name, key.added, kept if key.in_force else "no")
    app.console.print(table)


@command.command()
def revoke(app: App, *, name: str) -> None:
    """Refuse a key from now on; requests that were begun with it go on."""
    head = [app.inventory.head]
    with app.play(f"keys revoke {name}", head, gather_facts=False) as run:
        named_keys.revoke(run.open(), name)
    if app.as_json:
        app.print_json({"name": name, "revoked": True})
    else:
        click.echo(visible(f"{name} is revoked"))
