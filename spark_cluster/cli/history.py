"""What runs changed on the nodes: `history`, and `revert`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.changes import summary
from spark_cluster.cli.console import plain_table, styled
from spark_cluster.cli.options import DeclaredCommand
from spark_cluster.cli.results import NodeError
from spark_cluster.errors import Failed, SparkClusterError, worst
from spark_cluster.runner.events import Bus, NodeFailed, Note, Options, Result
from spark_cluster.runner.parallel import in_parallel
from spark_cluster.runner.play import Play
from spark_cluster.runner.session import Session

if TYPE_CHECKING:
    from spark_cluster.config.inventory import InventoryNode

Answers = dict[str, dict[str, Any]]
"""Node to what its journal says."""


@dataclass(frozen=True)
class RunOnNode:
    """The extent of a run's changes on one node.

    Attributes:
        changes: resources that were changed.
        paths: files, links and folders that were changed.
        notes: remarks on its journal: torn entries, missing contents.
    """

    changes: int
    paths: int
    notes: list[str]


@dataclass
class RunHead:
    """The run as its journals name it.

    Attributes:
        since: seconds since 1970 (UTC).
        reverts: the run that this one reverted.
    """

    run: str
    since: float | None
    user: str | None
    command: str | None
    reverts: str | None


@dataclass
class PastRun(RunHead):
    """A run that changed nodes.

    Attributes:
        reverting: the run that this one was reverting when it was killed.
        reverted_by: the run that reverted this one.
        half_reverted_by: a revert of this one that was killed.
        nodes: node to how much was changed there.
    """

    reverting: str | None
    reverted_by: str | None = None
    half_reverted_by: str | None = None
    nodes: dict[str, RunOnNode] = field(default_factory=dict)


@dataclass(frozen=True)
class Runs:
    """The document of `history`.

    Attributes:
        runs: the newest first.
        errors: node to why its journal could not be read.
    """

    runs: list[PastRun]
    errors: dict[str, NodeError]


@dataclass(frozen=True)
class JournalEntry:
    """An entry of a journal; what does not apply to its action is null.

    Attributes:
        time: seconds since 1970 (UTC).
        action: file, converged, repaired, reverting, reverted or undone.
        changes: attribute to [was, is now].
        before: what was at `path`: kind, mode, owner, and SHA-256 digest or link.
        after: the same of what came there, as far as it was known.
        what: what was repaired.
        of: the run that a revert reverts.
    """

    time: float
    resource: str
    action: str
    changes: dict[str, Any] | None
    path: str | None
    before: dict[str, Any] | None
    after: dict[str, Any] | None
    what: str | None
    of: str | None


@dataclass(frozen=True)
class ChangesOnNode:
    """The entries of a run in one node's journal, in order, and remarks on the journal."""

    entries: list[JournalEntry]
    notes: list[str]


@dataclass
class RunDetails(RunHead):
    """The document of `history RUN`; its fields are as in `history`.

    Attributes:
        memory_plot: file on this machine with the plot of the run's memory; null without one.
    """

    nodes: dict[str, ChangesOnNode]
    errors: dict[str, NodeError]
    memory_plot: str | None


@click.command(cls=DeclaredCommand)
def history(
    app: App,
    *,
    run_id: Annotated[str | None, {"metavar": "[RUN]"}],
    node: str | None,
) -> int:
    """List the runs that changed the nodes: when, who, which command, how much; with RUN, each of
    its changes. They are read from the nodes' journals; runs that changed nothing are not listed.

    `spark-cluster revert RUN` restores files as they were before.

    Args:
        node (NAME): Show only this node (as --limit).
    """
    if node is not None:
        app.cluster.limit = node
    jobs = {n.name: partial(_ask, app, n, run_id) for n in app.nodes}
    app.import_meanwhile()
    outcomes = in_parallel(jobs)
    errors = {n: o for n, o in outcomes.items() if isinstance(o, SparkClusterError)}
    answers = {n: o for n, o in outcomes.items() if not isinstance(o, SparkClusterError)}
    found = {n: answer for n, answer in answers.items() if "missing" not in answer}
    if run_id is not None and answers and not found:
        missing = next(iter(answers.values()))
        raise Failed(missing["missing"], hint=missing["hint"])
    reasons = {n: NodeError(e.message, e.hint) for n, e in errors.items()}
    if run_id is None:
        app.show(Runs(runs(found), reasons), partial(_show_runs, nodes=list(found)))
    else:
        app.show(_details(run_id, found, reasons), _show_run)
    return app.tell_lost(errors)


def _ask(app: App, node: InventoryNode, run_id: str | None) -> dict[str, Any]:
    with app.cluster.dialer.session(node, "history") as session:
        return session.request("history", of=run_id)


def runs(answers: Answers) -> list[PastRun]:
    """The runs of all nodes, the newest first; under `nodes`, how much each changed where."""
    found: dict[str, PastRun] = {}
    for name, answer in answers.items():
        for run in answer["runs"]:
            keys = ("run", "since", "user", "command", "reverts", "reverting")
            known = found.setdefault(run["run"], PastRun(*map(run.get, keys)))
            known.nodes[name] = RunOnNode(run["changes"], run["paths"], run.get("notes", []))
            known.reverted_by = known.reverted_by or run.get("reverted_by")
            known.half_reverted_by = known.half_reverted_by or run.get("half_reverted_by")
    return [found[run] for run in sorted(found, reverse=True)]


def _details(run_id: str, found: Answers, errors: dict[str, NodeError]) -> RunDetails:
    from spark_cluster.engine.vram import plot_path

    keys = [each.name for each in dataclasses.fields(JournalEntry)]
    nodes = {
        name: ChangesOnNode(
            [JournalEntry(*map(entry.get, keys)) for entry in answer["entries"]],
            answer.get("notes", []),
        )
        for name, answer in found.items()
    }
    first = next(iter(found.values()), {})
    run = first.get("run", run_id)
    since, user, command, reverts = map(first.get, ("since", "user", "command", "reverts"))
    path = plot_path(run)
    plot = str(path) if path.is_file() else None
    return RunDetails(run, since, user, command, reverts, nodes, errors, plot)


def _when(seconds: float | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else ""


def _show_runs(app: App, found: Runs, *, nodes: Sequence[str]) -> None:
    """Show the runs on the nodes that have answered; nothing where none has."""
    short, long = ("run", "when", *nodes), ("who", "command")
    table = plain_table(*short, *long, whole=short)
    for run in found.runs:
        counts = [_count(run.nodes.get(name)) for name in nodes]
        remarks = "".join(f"\n{remark}" for remark in _remarks(run))
        about = (run.user or "", styled("{}[dim]{}[/]", run.command or "", remarks))
        table.add_row(run.run, _when(run.since)[5:], *counts, *about)
    if found.runs:
        app.console.print(table)
    elif nodes:
        app.console.print("spark-cluster has never changed anything there")


def _remarks(run: PastRun) -> Iterator[str]:
    """Yield remarks on a run next to its counts."""
    if run.reverted_by:
        yield f"reverted by {run.reverted_by}"
    if run.half_reverted_by:
        again = f"spark-cluster revert {run.run}"
        yield f"partly reverted by {run.half_reverted_by}, which was killed: run {again} again"
    for name, counts in run.nodes.items():
        yield from (f"{name}: {note}" for note in counts.notes)


def _count(done: RunOnNode | None) -> str:
    """Return how much a run changed on a node; a revert restores files, without resources."""
    if done is None:
        return ""
    number, what = (done.changes, "change") if done.changes else (done.paths, "file")
    return f"{number} {what}{'' if number == 1 else 's'}"


def _show_run(app: App, found: RunDetails) -> None:
    if found.nodes:
        about = (_when(found.since), found.user or "", found.command or "")
        app.console.say("[bold]{}[/]  {}  {}  [bold]{}[/]", found.run, *about)
        if found.memory_plot:
            app.console.say("  [dim]memory over time: {}[/]", found.memory_plot)
    for name, changes in found.nodes.items():
        for note in changes.notes:
            app.console.say("  [bold]{}[/]  {}", name, note)
        for entry in changes.entries:
            at = time.strftime("%H:%M:%S", time.localtime(entry.time))
            app.console.say("  [bold]{}[/]  [dim]{}[/]  {}", name, at, described(entry))


def described(entry: JournalEntry) -> str:
    """Describe one entry of a journal."""
    resource = entry.resource
    if entry.action == "file":
        return f"  {entry.path or resource}: {_become(entry.before, entry.after)}"
    if entry.action == "converged":
        return f"{resource}  {summary(resource, entry.changes or {})}".rstrip()
    texts = {
        "repaired": f"{resource}  repaired {entry.what}",
        "reverting": f"began to revert what run {entry.of} had changed",
        "undone": f"could not revert it, and undid what it had done of run {entry.of}",
        "reverted": f"reverted what run {entry.of} had changed",
    }
    return texts.get(entry.action, f"{resource}  {entry.action}")


def _become(before: dict[str, Any] | None, after: dict[str, Any] | None) -> str:
    if before is None:
        return f"new {after['kind']}" if after else "was not there"
    if after is None:
        return f"{before['kind']} removed"
    parts = [] if before.get("sha256") == after.get("sha256") else ["content"]
    if "mode" in after and before.get("mode") != after["mode"]:
        parts.append(f"mode {before.get('mode', 0):04o} → {after['mode']:04o}")
    owners = [f"{side.get('uid')}:{side.get('gid')}" for side in (before, after)]
    if "uid" in after and owners[0] != owners[1]:
        parts.append(f"owner {owners[0]} → {owners[1]}")
    return ", ".join(parts) or "written again"


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
class LeftAsIs:
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
    left: list[LeftAsIs] = field(default_factory=list)
    continued: str | None = None
    error: str | None = None


@click.command(cls=DeclaredCommand)
def revert(
    app: App,
    *,
    run_id: Annotated[str, {"metavar": "RUN"}],
    check: bool,
    diff: bool,
    exit_code: bool,
) -> int:
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
    with app.cluster.play(f"revert {run_id}", app.nodes, options, gather_facts=False) as run:
        play = run.open(fail_fast=False)
        nodes, refused = revert_run(play, run_id)
        errors = {**play.out, **refused}
        run.finish(str(next(iter(errors.values()), "")))
    for name, error in play.out.items():
        nodes.setdefault(name, RevertedNode(error=error.message))
    document = run.document(ok=not errors, run=run.id, nodes=nodes)
    app.show(document, lambda app, _: _show_reverted(app, nodes))
    app.exit_code = exit_code
    return worst(errors.values())


def _show_reverted(app: App, nodes: dict[str, RevertedNode]) -> None:
    left = {one: None for node in nodes.values() for one in node.left}
    if left:
        app.console.say("\n[bold]not reverted[/]")
    for one in left:
        named = [name for name, node in nodes.items() if one in node.left]
        why, names = one.why.replace("-l NODE", f"-l {','.join(named)}"), ", ".join(named)
        app.console.say("  {}  [dim]{}  ({})[/]", one.what, why, names)
    app.show_recap()


def revert_run(play: Play, of: str) -> tuple[dict[str, RevertedNode], dict[str, SparkClusterError]]:
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
    """Revert on one node; return the agent's reply.

    Args:
        done: is filled with what was reverted and what is left.

    Raises:
        Failed: a path is not what the run left, so that nothing was reverted.
    """
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
    done.left = [LeftAsIs(item["what"], item["why"]) for item in reply["left"]]
    done.continued = reply.get("continued") or None
    for note in reply.get("notes", ()):
        bus.emit(Note(f"run {done.of}: {note}", "warning", session.node))
    if failed:
        raise _nothing_reverted(session.node, failed)
    if done.continued:
        bus.emit(Note(_continued(done.continued, check=wanted["check"]), "info", session.node))
    return reply


def _continued(run: str, *, check: bool) -> str:
    does = "would continue" if check else "continued"
    text = f"{does} run {run}, a revert of the same run that was killed"
    return f"{text}; to revert it: spark-cluster revert {run}"


def _nothing_reverted(node: str, failed: Sequence[Result]) -> Failed:
    others = f", and {len(failed) - 1} more" if len(failed) > 1 else ""
    return Failed(
        f"nothing was reverted: {failed[0].error}{others}",
        where=node,
        hint="restore these to what the run left, or revert the later run first",
    )
