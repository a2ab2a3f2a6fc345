"""`exec`: run a command on the nodes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.options import Command
from spark_cluster.cli.visible import show_error
from spark_cluster.errors import SparkClusterError
from spark_cluster.node.output import OUTPUT_LIMIT

if TYPE_CHECKING:
    from spark_cluster.config.inventory import InventoryNode
    from spark_cluster.runner.session import Output


@click.command(context_settings={"allow_interspersed_args": False}, cls=Command)
def command(
    ctx: click.Context,
    app: App,
    *,
    become: bool,
    timeout: float = 600.0,
    argv: Annotated[tuple[str, ...], {"metavar": "COMMAND [ARG]...", "required": True}],
) -> None:
    """Run one command on every node in parallel, and show what each printed.

    The arguments reach the command unchanged, without a shell (to use one: exec sh -c '...').
    What it prints is passed on as it is, control sequences too, as ssh does; pipe the output
    through `cat -v` where you do not trust it.

    Exit status 1 when it fails on any node.

    Args:
        become (-b, --become): Run as root, through sudo.
        timeout: Time limit, seconds. [default]
    """
    from spark_cluster.runner.parallel import in_parallel

    jobs = {node.name: partial(_run, app, node, list(argv), become, timeout) for node in app.nodes}
    outcomes = in_parallel(jobs)
    if app.as_json:
        app.print_json({"nodes": [_document(name, o) for name, o in outcomes.items()]})
    else:
        for name, outcome in outcomes.items():
            _show(name, outcome)
    codes = [
        o.exit_code if isinstance(o, SparkClusterError) else int(o.status != 0)
        for o in outcomes.values()
    ]
    ctx.exit(max(codes))


def _run(app: App, node: InventoryNode, argv: list[str], become: bool, timeout: float) -> Output:
    with app.cluster.dialer.session(node, "exec", become=become) as session:
        return session.run(argv, timeout=timeout)


def _document(name: str, outcome: Output | SparkClusterError) -> dict[str, object]:
    if isinstance(outcome, SparkClusterError):
        return {"name": name, "status": None, "error": outcome.message, "hint": outcome.hint}
    return {
        "name": name,
        "status": outcome.status,
        "stdout": outcome.stdout,
        "stderr": outcome.stderr,
        "left_out_bytes": outcome.left_out,
    }


def _show(name: str, outcome: Output | SparkClusterError) -> None:
    if isinstance(outcome, SparkClusterError):
        show_error(outcome.message, outcome.hint, node=name)
        return
    _pass_on(name, outcome.stdout)
    _pass_on(name, outcome.stderr, err=True)
    if outcome.left_out:
        click.echo(
            f"{name}: {outcome.left_out} bytes were left out of the middle: up to "
            f"{OUTPUT_LIMIT >> 20} MiB of an output are sent; to have all of it, write it to a "
            "file there: exec -- sh -c 'COMMAND > /tmp/FILE'",
            err=True,
        )
    if outcome.status != 0:
        click.echo(f"{name}: status {outcome.status}", err=True)


def _pass_on(name: str, text: str, *, err: bool = False) -> None:
    """Each line with the node's name, otherwise untouched."""
    for line in text.removesuffix("\n").split("\n") if text else ():
        click.echo(f"{name}: {line}", err=err, color=True)  # True: click takes nothing out
