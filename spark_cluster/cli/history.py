"""`history`: what runs changed on the nodes."""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.visible import show_error
from spark_cluster.errors import Failed, SparkClusterError

if TYPE_CHECKING:
    from spark_cluster.config.inventory import InventoryNode

Answers = dict[str, dict[str, Any]]
"""Node to what its journal says."""


@click.command()
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--node", metavar="NAME", help="Show only this node (as --limit).")
@click.pass_context
def command(ctx: click.Context, run_id: str | None, node: str | None) -> None:
    """List the runs that changed the nodes: when, who, which command, how much; with RUN, each of
    its changes. They are read from the nodes' journals; runs that changed nothing are not listed.

    `spark-cluster revert RUN` restores files as they were before.
    """
    from spark_cluster.runner.parallel import in_parallel

    app: App = ctx.obj
    if node is not None:
        app.limit = node
    app.connect_early("history")
    jobs = {n.name: partial(_ask, n, run_id) for n in app.nodes}
    app.import_meanwhile()
    outcomes = in_parallel(jobs)
    errors = {n: o for n, o in outcomes.items() if isinstance(o, SparkClusterError)}
    answers = {n: o for n, o in outcomes.items() if not isinstance(o, SparkClusterError)}
    found = {n: answer for n, answer in answers.items() if "missing" not in answer}
    if run_id is not None and answers and not found:
        missing = next(iter(answers.values()))
        raise Failed(missing["missing"], hint=missing["hint"])
    if app.as_json:
        app.print_json(_document(found, errors, run_id))
    elif run_id is not None:
        _show_run(app, found)
    elif found:
        _show_runs(app, found)
    for name, error in errors.items():
        show_error(error.message, error.hint, node=name)
    if errors:
        ctx.exit(max(error.exit_code for error in errors.values()))


def _ask(node: InventoryNode, run_id: str | None) -> dict[str, Any]:
    from spark_cluster.runner.connections import ssh

    connection = ssh(node)
    try:
        session = connection.session("history", become=True)
        answer = session.request("history", of=run_id)
        session.close()
    finally:
        connection.close()
    return {k: v for k, v in answer.items() if k not in ("event", "req")}


def runs(answers: Answers) -> list[dict[str, Any]]:
    """The runs of all nodes, the newest first; under `nodes`, how much each changed where."""
    found: dict[str, dict[str, Any]] = {}
    for name, answer in answers.items():
        for run in answer["runs"]:
            about = {k: v for k, v in run.items() if k not in ("changes", "paths", "notes")}
            known = found.setdefault(run["run"], {**about, "half_reverted_by": None, "nodes": {}})
            counts = {"changes": run["changes"], "paths": run["paths"]}
            notes = {"notes": run["notes"]} if run.get("notes") else {}
            known["nodes"][name] = {**counts, **notes}
            for key in ("reverted_by", "half_reverted_by"):
                known[key] = known[key] or run.get(key)
    return [found[run] for run in sorted(found, reverse=True)]


def _document(
    found: Answers, errors: dict[str, SparkClusterError], run_id: str | None
) -> dict[str, Any]:
    told = {n: {"message": e.message, "hint": e.hint} for n, e in errors.items()}
    if run_id is None:
        return {"runs": runs(found), "errors": told}
    first = next(iter(found.values()))
    about = {k: first.get(k) for k in ("run", "since", "user", "command", "reverts")}
    return {
        **about,
        "nodes": {
            name: {"entries": answer["entries"], "notes": answer.get("notes", [])}
            for name, answer in found.items()
        },
        "errors": told,
    }


def _when(seconds: float | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else ""


def _show_runs(app: App, found: Answers) -> None:
    from rich.table import Table

    from spark_cluster.cli.console import styled

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("run", "when", *found):
        table.add_column(title, no_wrap=True)
    for title in ("who", "command"):
        table.add_column(title, overflow="fold")
    listed = runs(found)
    for run in listed:
        counts = [_count(run["nodes"].get(name)) for name in found]
        remarks = "".join(f"\n{remark}" for remark in _remarks(run))
        about = (run["user"] or "", styled("{}[dim]{}[/]", run["command"] or "", remarks))
        table.add_row(run["run"], _when(run["since"])[5:], *counts, *about)
    if listed:
        app.console.print(table)
    else:
        app.console.print("nothing was ever changed there by spark-cluster")


def _remarks(run: dict[str, Any]) -> Iterator[str]:
    """Yield remarks on a run next to its counts."""
    if run["reverted_by"]:
        yield f"reverted by {run['reverted_by']}"
    if run["half_reverted_by"]:
        again = f"spark-cluster revert {run['run']}"
        yield f"partly reverted by {run['half_reverted_by']}, which was killed: run {again} again"
    for name, counts in run["nodes"].items():
        yield from (f"{name}: {note}" for note in counts.get("notes", ()))


def _count(done: dict[str, int] | None) -> str:
    """Return how much a run changed on a node; a revert restores files, without resources."""
    if done is None:
        return ""
    number, what = (done["changes"], "change") if done["changes"] else (done["paths"], "file")
    return f"{number} {what}{'' if number == 1 else 's'}"


def _show_run(app: App, found: Answers) -> None:
    from spark_cluster.cli.console import styled

    first = next(iter(found.values()))
    about = (_when(first["since"]), first["user"] or "", first["command"] or "")
    line = styled("[bold]{}[/]  {}  {}  [bold]{}[/]", first["run"], *about)
    app.console.print(line, soft_wrap=True)
    for name, answer in found.items():
        for note in answer.get("notes", ()):
            app.console.print(styled("  [bold]{}[/]  {}", name, note), soft_wrap=True)
        for entry in answer["entries"]:
            at = time.strftime("%H:%M:%S", time.localtime(entry["time"]))
            line = styled("  [bold]{}[/]  [dim]{}[/]  {}", name, at, told(entry))
            app.console.print(line, soft_wrap=True)


def told(entry: dict[str, Any]) -> str:
    """Describe one entry of a journal."""
    from spark_cluster.cli.display import summary

    action, resource = entry["action"], entry["resource"]
    if action == "file":
        return f"  {entry['path']}: {_become(entry.get('before'), entry.get('after'))}"
    if action == "converged":
        return f"{resource}  {summary(entry.get('changes') or {})}".rstrip()
    texts = {
        "repaired": f"{resource}  repaired {entry.get('what')}",
        "reverting": f"began to revert what run {entry.get('of')} had changed",
        "undone": f"could not revert it, and undid what it had done of run {entry.get('of')}",
        "reverted": f"reverted what run {entry.get('of')} had changed",
    }
    return texts.get(action, f"{resource}  {action}")


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
