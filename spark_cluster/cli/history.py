"""`history`: what runs changed on the nodes."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from spark_cluster.cli.app import App
from spark_cluster.errors import Failed, SparkClusterError

if TYPE_CHECKING:
    from spark_cluster.inventory import Node

Answers = dict[str, dict[str, Any]]
"""Node to what its journal says."""


@click.command()
@click.argument("run_id", metavar="[RUN]", required=False)
@click.option("--node", metavar="NAME", help="Only this node (as --limit).")
@click.pass_context
def command(ctx: click.Context, run_id: str | None, node: str | None) -> None:
    """Lists the runs that changed the nodes: when, who, which command, how much; with RUN, each of
    its changes. It is read from the journals on the nodes; runs that changed nothing are in none.

    `spark-cluster revert RUN` puts files back as they were before.
    """
    from spark_cluster.engine.connections import side_by_side

    app: App = ctx.obj
    if node is not None:
        app.limit = node
    outcomes = side_by_side({n.name: partial(_ask, n, run_id) for n in app.nodes})
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
        click.echo(f"{name}: {click.style('error', fg='red')}: {error.message}", err=True)
        if error.hint:
            click.echo(f"{name}:   {error.hint}", err=True)
    if errors:
        ctx.exit(max(error.exit_code for error in errors.values()))


def _ask(node: Node, run_id: str | None) -> dict[str, Any]:
    from spark_cluster.engine.connections import ssh

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
            about = {k: v for k, v in run.items() if k not in ("changes", "paths")}
            known = found.setdefault(run["run"], {**about, "nodes": {}})
            known["nodes"][name] = {"changes": run["changes"], "paths": run["paths"]}
            known["reverted_by"] = known["reverted_by"] or run["reverted_by"]
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
        "nodes": {name: {"entries": answer["entries"]} for name, answer in found.items()},
        "errors": told,
    }


def _when(seconds: float | None) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds)) if seconds else ""


def _show_runs(app: App, found: Answers) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("run", "when", *found):
        table.add_column(title, no_wrap=True)
    for title in ("who", "command"):
        table.add_column(title, overflow="fold")
    listed = runs(found)
    for run in listed:
        counts = [_count(run["nodes"].get(name)) for name in found]
        remark = f"\n[dim]reverted by {run['reverted_by']}[/]" if run["reverted_by"] else ""
        about = (run["user"] or "", escape(run["command"] or "") + remark)
        table.add_row(run["run"], _when(run["since"])[5:], *counts, *about)
    if listed:
        app.console.print(table)
    else:
        app.console.print("nothing was ever changed there by spark-cluster")


def _count(done: dict[str, int] | None) -> str:
    """How much a run changed on a node; a revert puts back files, with no resource of its own."""
    if done is None:
        return ""
    number, what = (done["changes"], "change") if done["changes"] else (done["paths"], "file")
    return f"{number} {what}{'' if number == 1 else 's'}"


def _show_run(app: App, found: Answers) -> None:
    from rich.markup import escape

    first = next(iter(found.values()))
    app.console.print(
        f"[bold]{first['run']}[/]  {_when(first['since'])}  {escape(first['user'] or '')}  "
        f"[bold]{escape(first['command'] or '')}[/]",
        soft_wrap=True,
    )
    for name, answer in found.items():
        for entry in answer["entries"]:
            at = time.strftime("%H:%M:%S", time.localtime(entry["time"]))
            app.console.print(
                f"  [bold]{escape(name)}[/]  [dim]{at}[/]  {escape(told(entry))}", soft_wrap=True
            )


def told(entry: dict[str, Any]) -> str:
    """One entry of a journal in words."""
    from spark_cluster.cli.display import summary

    action, resource = entry["action"], entry["resource"]
    if action == "file":
        return f"  {entry['path']}: {_become(entry.get('before'), entry.get('after'))}"
    if action == "converged":
        return f"{resource}  {summary(entry.get('changes') or {})}".rstrip()
    if action == "repaired":
        return f"{resource}  repaired {entry['what']}"
    if action == "reverted":
        return f"put back what run {entry['of']} had changed"
    return f"{resource}  {action}"


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
