"""`spark-cluster init`: writes a commented inventory for the user's nodes."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.options import Command, Port
from spark_cluster.config.discovery import DEFAULT_RECIPE, Answers, write
from spark_cluster.config.schema import env_name
from spark_cluster.errors import UsageError


@dataclass(frozen=True)
class Written:
    """The document of `init`.

    Attributes:
        file: path of the inventory that was written.
        nodes: names of its nodes.
        next: commands to run next.
    """

    ok: bool
    file: str
    nodes: list[str]
    next: list[str]


@click.command("init", cls=Command)
def command(
    app: App,
    *,
    addresses: tuple[str, ...],
    user: str | None,
    identity_file: str | None,
    port: Port | None,
    recipe: str | None,
    sudo_password: str | None,
    passwordless_sudo: bool,
    force: bool,
    yes: bool,
) -> None:
    """Write a commented inventory.yaml for one or more Sparks into the project folder.

    Args:
        addresses (--node ADDRESS): Management address of a Spark, the head first; once for each.
        user (NAME): User to log in as (default: as ~/.ssh/config says).
        identity_file (FILE): Private key (default: agent and ~/.ssh).
        port: Port of the nodes' sshd.
        recipe (NAME): What to serve.
        sudo_password (SOURCE): Where sudo's password comes from: `prompt`, or the name of an
            environment variable.
        passwordless_sudo: Have `provision` let the user use sudo without a password.
        force: Replace an existing inventory.yaml.
        yes: Ask nothing.
    """
    project = app.project
    path = project.folder / "inventory.yaml"
    # Before the questions: no one likes to answer them for nothing.
    if path.exists() and not force:
        raise UsageError(f"{path} exists", hint="edit it, or replace it with --force")
    if not addresses and yes:
        raise _no_node()
    if not addresses:
        try:
            addresses = _ask_addresses()
            user = user or click.prompt("User on the Sparks", default="nvidia", err=True)
        except click.Abort:
            # Ctrl-C at a terminal stays what it is; without one there was no one to ask.
            if sys.stdin.isatty():
                raise click.Abort from None
            click.echo("", err=True)  # the question's line has no end
            raise _no_node() from None
    answers = Answers(
        addresses,
        user,
        identity_file,
        recipe or DEFAULT_RECIPE,
        port,
        _source(sudo_password),
        passwordless_sudo,
    )
    inventory = write(path, answers, project)
    _print(path, list(inventory.nodes), as_json=app.as_json)


def _source(text: str | None) -> str | None:
    """Raises:
    UsageError: it is neither `prompt` nor the name of a variable; it could be the password.
    """
    if text in (None, "prompt"):
        return text
    try:
        return env_name(str(text))
    except ValueError:
        raise UsageError(
            "--sudo-password: expected `prompt` or the name of an environment variable",
            hint="the password itself never stands on a command line",
        ) from None


def _no_node() -> UsageError:
    return UsageError("no node given", hint="name each Spark with --node ADDRESS")


def _ask_addresses() -> tuple[str, ...]:
    addresses = [click.prompt("Address of the first Spark (the head)", err=True)]
    while True:
        more = click.prompt(
            "Address of the next Spark (empty: no more)", default="", show_default=False, err=True
        )
        if not more:
            return tuple(addresses)
        addresses.append(more)


def _print(path: Path, nodes: list[str], *, as_json: bool) -> None:
    steps = ["spark-cluster trust", "spark-cluster ping"]
    steps.append(f"spark-cluster up --tp {min(len(nodes), 2)}")
    if as_json:
        click.echo(json.dumps(asdict(Written(True, str(path), nodes, steps))))
        return
    click.echo(f"Wrote {path} ({', '.join(nodes)}). Next:")
    meanings = ["accept the nodes' host keys", "check that they answer", "serve"]
    for step, meaning in zip(steps, meanings, strict=True):
        click.echo(f"  {step:<24}  {meaning}")
