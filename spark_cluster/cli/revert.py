"""`revert`: revert what a run changed."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from spark_cluster.cli.app import WOULD_CHANGE, App

if TYPE_CHECKING:
    from spark_cluster.cli.run import Run
    from spark_cluster.cluster.revert import NodeRevert


@dataclass(frozen=True)
class Reverted:
    """A file, link or folder that was reverted, or in check mode would be.

    Attributes:
        changes: attribute to [was, is now].
        diff: with --diff, the difference of its content.
    """

    path: str
    changes: dict[str, Any]
    diff: str


@dataclass(frozen=True)
class Left:
    """A path that a revert leaves as the run left it, and why."""

    what: str
    why: str


@dataclass(frozen=True)
class RevertedNode:
    """The result of a revert on one node.

    Attributes:
        of: full id of the run; null when it changed nothing there.
        continued: the revert of the same run that was killed and that this one continued.
        error: why nothing was reverted.
    """

    of: str | None
    reverted: list[Reverted]
    left: list[Left]
    continued: str | None
    error: str | None


@click.command()
@click.argument("run_id", metavar="RUN")
@click.option("--check", is_flag=True, help="Change nothing; show what would be reverted.")
@click.option("--diff", is_flag=True, help="Show differences of files; secrets are not shown.")
@click.option("--exit-code", is_flag=True, help="With --check: exit status 10 if it would change.")
@click.pass_obj
def command(app: App, run_id: str, check: bool, diff: bool, exit_code: bool) -> None:
    """Restore files and folders as they were before RUN, byte for byte, with mode and owner.

    RUN is an id that `history` shows, or the beginning of one. On each node it is all or nothing:
    when something was changed since, nothing is touched; the error says what and by whom. A revert
    that was killed is continued by the same command. Packages, containers, services and commands
    cannot be reverted; they are listed. A revert is a run like any other, and can be reverted.
    """
    from spark_cluster.cluster.revert import revert
    from spark_cluster.runner.options import Options

    options = Options(check=check, diff=diff)
    with app.play(f"revert {run_id}", app.nodes, options, gather_facts=False) as run:
        play = run.open(fail_fast=False)
        done = revert(play, run_id)
        errors = {**play.out, **{n: d.error for n, d in done.items() if d.error is not None}}
        first = next(iter(errors.values()), None)
        run.finish(str(first or ""))
        if app.as_json:
            app.print_json(_document(run, done, {n: str(e.message) for n, e in errors.items()}))
        else:
            _show(app, run, done)
    if errors:
        sys.exit(max(error.exit_code for error in errors.values()))
    if exit_code and check and run.recap.changed:
        sys.exit(WOULD_CHANGE)


def _document(run: Run, done: dict[str, NodeRevert], errors: dict[str, str]) -> dict[str, Any]:
    nodes = {
        name: RevertedNode(
            of=found.of or None,
            reverted=[
                Reverted(r.resource.partition(":")[2], dict(r.changes), r.diff) for r in found.paths
            ],
            left=[Left(what, why) for what, why in found.left],
            continued=found.continued or None,
            error=errors.get(name),
        )
        for name, found in done.items()
    }
    for name in errors.keys() - nodes.keys():
        nodes[name] = RevertedNode(None, [], [], None, errors[name])
    documents = {name: dataclasses.asdict(node) for name, node in nodes.items()}
    return run.to_dict(ok=not errors, run=run.id, nodes=documents)


def _show(app: App, run: Run, done: dict[str, NodeRevert]) -> None:
    from spark_cluster.cli.console import styled

    console = app.console
    left = {(what, why): name for name, found in done.items() for what, why in found.left}
    if left:
        console.print(styled("\n[bold]not reverted[/]"))
    for what, why in left:
        nodes = ", ".join(n for n, found in done.items() if (what, why) in found.left)
        console.print(styled("  {}  [dim]{}  ({})[/]", what, why, nodes), soft_wrap=True)
    run.show_recap()
