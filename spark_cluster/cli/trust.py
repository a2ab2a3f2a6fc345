"""`trust`: look at the nodes' host keys and accept them."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

import click

from spark_cluster.cli.app import App
from spark_cluster.errors import Failed, SparkClusterError

if TYPE_CHECKING:
    from pathlib import Path

    from spark_cluster.engine.hostkeys import Shown


@click.command()
@click.option("--replace", is_flag=True, help="Also accept a key that differs from the known one.")
@click.option("-y", "--yes", is_flag=True, help="Accept new keys without asking.")
@click.pass_context
def command(ctx: click.Context, replace: bool, yes: bool) -> None:
    """Shows the SSH host key of every node and writes down those that you accept.

    Compare the fingerprints with the nodes' own: on a node,
    ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub prints it. A changed key is only replaced
    with --replace.
    """
    from spark_cluster.engine.connections import side_by_side, target
    from spark_cluster.engine.hostkeys import file_of, show

    app: App = ctx.obj
    targets = {node.name: target(node) for node in app.nodes}
    outcomes = side_by_side({name: partial(show, t) for name, t in targets.items()})
    accepted: dict[Path, list[Shown]] = {}
    errors: list[SparkClusterError] = []
    rows: list[dict[str, object]] = []
    for name, outcome in outcomes.items():
        if isinstance(outcome, SparkClusterError):
            errors.append(outcome)
            rows.append({"name": name, "error": outcome.message, "hint": outcome.hint})
            _say(app, f"{name}: {click.style('unreachable', fg='red')}: {outcome.message}")
            continue
        written, refusal = _decide(app, outcome, replace=replace, yes=yes)
        if refusal is not None:
            errors.append(refusal)
        if written:
            accepted.setdefault(file_of(targets[name]), []).append(outcome)
        rows.append(_row(outcome, trusted=written or outcome.verdict == "trusted"))
    _write(accepted)
    if app.as_json:
        app.print_json({"nodes": rows})
    if errors:
        ctx.exit(max(error.exit_code for error in errors))


def _write(accepted: dict[Path, list[Shown]]) -> None:
    from spark_cluster.engine.hostkeys import write

    for path, keys in accepted.items():
        write(path, keys)


def _decide(
    app: App, shown: Shown, *, replace: bool, yes: bool
) -> tuple[bool, SparkClusterError | None]:
    """Whether the key is to be written, and the error when it is refused."""
    said = f"{shown.node}: {shown.host} shows {shown.kind} {shown.fingerprint}"
    if shown.verdict == "trusted":
        _say(app, f"{said}  {click.style('trusted already', fg='green')}")
        return False, None
    if shown.verdict == "changed":
        _say(app, f"{said}  {click.style('CHANGED', fg='red')}, known is {shown.known}")
        if not replace:
            _say(app, "  a reinstalled node has a new key; if you know why: --replace")
            return False, Failed("its host key has changed", where=shown.node)
    else:
        _say(app, f"{said}  {click.style('new', fg='yellow')}")
    if yes:
        return True, None
    if not sys.stdin.isatty():
        _say(app, "  nobody can be asked here; --yes accepts it")
        return False, Failed("its host key was not accepted", where=shown.node)
    if click.confirm("  accept it?", err=True):
        return True, None
    return False, Failed("its host key was not accepted", where=shown.node)


def _row(shown: Shown, *, trusted: bool) -> dict[str, object]:
    return {
        "name": shown.node,
        "host": shown.host,
        "type": shown.kind,
        "fingerprint": shown.fingerprint,
        "was": shown.verdict,
        "trusted": trusted,
    }


def _say(app: App, text: str) -> None:
    click.echo(text, err=app.as_json)
