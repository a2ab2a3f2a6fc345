"""`revert`: revert what a run changed."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any

import click

from spark_cluster.cli.app import App, leave_with
from spark_cluster.cli.console import styled
from spark_cluster.cli.options import Command
from spark_cluster.errors import Failed, SparkClusterError
from spark_cluster.runner.events import Bus, NodeFailed, Note, Result
from spark_cluster.runner.options import Options
from spark_cluster.runner.parallel import in_parallel
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Session


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


@dataclass
class RevertedNode:
    """The result of a revert on one node.

    Attributes:
        of: full id of the run; null when it changed nothing there.
        reverted: what was reverted, or in check mode would be.
        left: all that stays as the run left it.
        continued: the revert of the same run that was killed and that this one continued.
        error: why nothing was reverted.
    """

    of: str | None = None
    reverted: list[Reverted] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    continued: str | None = None
    error: str | None = None


@click.command(cls=Command)
def command(
    app: App,
    *,
    run_id: Annotated[str, {"metavar": "RUN"}],
    check: bool,
    diff: bool,
    exit_code: bool,
) -> None:
    """Restore files and folders as they were before RUN, byte for byte, with mode and owner.

    RUN is an id that `history` shows, or the beginning of one. On each node it is all or nothing:
    when something was changed since, nothing is touched; the error says what and by whom. A revert
    that was killed is continued by the same command. Packages, containers, services and commands
    cannot be reverted; they are listed. A revert is a run like any other, and can be reverted.

    Args:
        check: Change nothing; show what would be reverted.
        diff: Show differences of files; secrets are not shown.
        exit_code: With --check: exit status 10 if it would change.
    """
    options = Options(check=check, diff=diff)
    with app.play(f"revert {run_id}", app.nodes, options, gather_facts=False) as run:
        play = run.open(fail_fast=False)
        nodes, refused = revert(play, run_id)
        errors = {**play.out, **refused}
        run.finish(str(next(iter(errors.values()), "")))
    for name, error in play.out.items():
        nodes.setdefault(name, RevertedNode(error=error.message))
    if app.as_json:
        app.print_json(run.document(ok=not errors, run=run.id, nodes=nodes))
    else:
        _show(app, nodes)
    if errors:
        sys.exit(max(error.exit_code for error in errors.values()))
    leave_with(run, exit_code=exit_code)


def _show(app: App, nodes: dict[str, RevertedNode]) -> None:
    console = app.console
    left = {one: None for node in nodes.values() for one in node.left}
    if left:
        console.print(styled("\n[bold]not reverted[/]"))
    for one in left:
        names = ", ".join(name for name, node in nodes.items() if one in node.left)
        console.print(styled("  {}  [dim]{}  ({})[/]", one.what, one.why, names), soft_wrap=True)
    app.show_recap()


def revert(play: Play, of: str) -> tuple[dict[str, RevertedNode], dict[str, SparkClusterError]]:
    """Revert run `of` on the nodes of a play, in parallel: on each of them all of it or nothing.

    Returns:
        The result of each node, and the error of each on which nothing was reverted.

    Raises:
        Failed: the run changed nothing on any of them.
    """
    bus, options = play.bus, play.options
    wanted = {"of": of, "run": play.connections.run, "check": play.check, "diff": options.diff}
    done = {node.name: RevertedNode() for node in play.nodes}
    jobs = {n: partial(_on_node, s, bus, wanted, done[n]) for n, s in play.sessions.items()}
    missing: list[dict[str, Any]] = []
    errors: dict[str, SparkClusterError] = {}
    for name, outcome in in_parallel(jobs).items():
        if isinstance(outcome, SparkClusterError):
            errors[name], done[name].error = outcome, outcome.message
            bus.emit(NodeFailed.of(name, outcome))
        elif "missing" in outcome:
            missing.append(outcome)
            bus.emit(Note(outcome["missing"], "info", name))
    if missing and len(missing) == len(done):
        raise Failed(missing[0]["missing"], hint=missing[0]["hint"])
    return done, errors


def _on_node(
    session: Session, bus: Bus, wanted: dict[str, Any], done: RevertedNode
) -> dict[str, Any]:
    failed: list[Result] = []

    def take(event: dict[str, Any]) -> None:
        if event["event"] == "note":
            bus.emit(Note(event["text"], "warning", session.node))
        if event["event"] != "result":
            return
        known = {k: event[k] for k in ("changes", "diff", "error") if k in event}
        result = Result(session.node, "revert", event["id"], event["verdict"], **known)
        if result.verdict == "failed":
            failed.append(result)
        else:
            path = result.resource.partition(":")[2]
            done.reverted.append(Reverted(path, dict(result.changes), result.diff))
        bus.emit(result)

    reply = session.request("revert", take, **wanted)
    if "missing" in reply:
        return reply
    done.of = reply["of"]
    done.left = [Left(item["what"], item["why"]) for item in reply["left"]]
    done.continued = reply.get("continued") or None
    for note in reply.get("notes", ()):
        bus.emit(Note(f"run {done.of}: {note}", "warning", session.node))
    if done.continued and not failed:
        does = "would continue" if wanted["check"] else "continued"
        text = f"{does} run {done.continued}, a revert of the same run that was killed"
        bus.emit(
            Note(
                f"{text}; to revert it: spark-cluster revert {done.continued}",
                "info",
                session.node,
            )
        )
    if failed:
        others = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
        raise Failed(
            f"nothing was reverted: {failed[0].error}{others}",
            where=session.node,
            hint="restore these to what the run left, or revert the later run first",
        )
    return reply
