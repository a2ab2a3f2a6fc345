"""`revert`: revert what a run changed."""

from __future__ import annotations

import dataclasses
import sys
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from spark_cluster.cli.app import App, leave_with
from spark_cluster.cli.console import styled
from spark_cluster.errors import Failed, SparkClusterError
from spark_cluster.runner.events import NodeFailed, Note, Result
from spark_cluster.runner.parallel import in_parallel

if TYPE_CHECKING:
    from spark_cluster.cli.run import Run
    from spark_cluster.runner.events import Bus
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


@dataclass
class NodeRevert:
    """The result of a revert on one node.

    Attributes:
        of: full id of the run; empty when it changed nothing there.
        paths: what was reverted, or in check mode would be.
        left: (what, why) of all that stays as the run left it.
        continued: the run of a revert that was killed, which this one has continued.
        error: why nothing was reverted.
    """

    of: str = ""
    paths: list[Result] = field(default_factory=list)
    left: list[tuple[str, str]] = field(default_factory=list)
    continued: str = ""
    error: SparkClusterError | None = None


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
        _show(app, done)
    if errors:
        sys.exit(max(error.exit_code for error in errors.values()))
    leave_with(run, exit_code=exit_code)


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


def _show(app: App, done: dict[str, NodeRevert]) -> None:

    console = app.console
    left = {(what, why): name for name, found in done.items() for what, why in found.left}
    if left:
        console.print(styled("\n[bold]not reverted[/]"))
    for what, why in left:
        nodes = ", ".join(n for n, found in done.items() if (what, why) in found.left)
        console.print(styled("  {}  [dim]{}  ({})[/]", what, why, nodes), soft_wrap=True)
    app.show_recap()


def revert(play: Play, of: str) -> dict[str, NodeRevert]:
    """Revert run `of` on the nodes of a play, in parallel: on each of them all of it or nothing.

    Raises:
        Failed: the run changed nothing on any of them.
    """
    bus, options = play.bus, play.options
    wanted = {"of": of, "run": play.connections.run, "check": play.check, "diff": options.diff}
    done = {node.name: NodeRevert() for node in play.nodes}
    jobs = {n: partial(_on_node, s, bus, wanted, done[n]) for n, s in play.sessions.items()}
    missing: list[dict[str, Any]] = []
    for name, outcome in in_parallel(jobs).items():
        if isinstance(outcome, SparkClusterError):
            done[name].error = outcome
            bus.emit(NodeFailed.of(name, outcome))
        elif "missing" in outcome:
            missing.append(outcome)
            bus.emit(Note(outcome["missing"], "info", name))
    if missing and len(missing) == len(done):
        raise Failed(missing[0]["missing"], hint=missing[0]["hint"])
    return done


def _on_node(
    session: Session, bus: Bus, wanted: dict[str, Any], done: NodeRevert
) -> dict[str, Any]:
    failed: list[Result] = []

    def take(event: dict[str, Any]) -> None:
        if event["event"] == "note":
            bus.emit(Note(event["text"], "warning", session.node))
        if event["event"] != "result":
            return
        known = {k: event[k] for k in ("changes", "diff", "error") if k in event}
        result = Result(session.node, "revert", event["id"], event["verdict"], **known)
        (failed if result.verdict == "failed" else done.paths).append(result)
        bus.emit(result)

    reply = session.request("revert", take, **wanted)
    if "missing" in reply:
        return reply
    done.of = reply["of"]
    done.left = [(item["what"], item["why"]) for item in reply["left"]]
    done.continued = reply.get("continued", "")
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
