"""What serves: `status`, `verify` and `down`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, TypedDict, Unpack

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.console import joined, mark, painted, plain_table, styled
from spark_cluster.cli.options import Changing, Command, EndingJobs, Unloading
from spark_cluster.cli.vram import table

if TYPE_CHECKING:
    from spark_cluster.cli.serving_results import DownResult
    from spark_cluster.cli.terminal import Console
    from spark_cluster.engine.result import Status
    from spark_cluster.engine.verify import CheckVerdict, ComparedSize, Verification

STYLES = {
    "serving": "green",
    "starting": "yellow",
    "degraded": "yellow",
    "failed": "red",
    "stopped": "dim",
}


@click.command(cls=Command)
def status(app: App) -> int:
    """Show what serves and what is wrong: containers, Ray, health, and a real completion.

    Exit status 5 when the state is failed or degraded, 3 when no node can be reached.
    """
    found = app.cluster.status()
    app.show(found, _show_status)
    return 5 if found.state in ("failed", "degraded") else 0


def _show_status(app: App, found: Status) -> None:
    console = app.console
    verdict = painted(found.state, f"bold {STYLES[found.state]}")
    if found.model:
        kind = f"{found.kind}, " if found.kind not in (None, "chat") else ""
        number = len(found.replicas)
        ranks = f", {found.data_parallel} data-parallel ranks" if found.data_parallel > 1 else ""
        size = f"{number} replicas" if number else f"tp {found.tp}{ranks}"
        shown = (found.model, found.endpoint, kind, size)
        verdict += styled("  {} at {}  [dim]{}{}[/]", *shown)
        if found.overrides:
            verdict += styled("  [dim]{}[/]", found.overrides)
    if found.models:
        verdict += styled("  {} models at {}", len(found.models), found.endpoint)
    console.print(verdict, soft_wrap=True)
    if found.access is not None:
        console.print(painted(str(found.access), "dim"), soft_wrap=True)
    table = plain_table("node", "container", "state", "restarts")
    for node in found.nodes:
        if not node.reachable:
            table.add_row(node.name, "", painted("unreachable", "red"), "")
        for name, container in node.containers.items():
            if container.status != "absent":
                table.add_row(node.name, name, container.status, str(container.restarts))
    if table.row_count:
        console.print(table)
    _show_behind(console, found)
    if found.ray:
        gpus = sum(node.gpus for node in found.ray)
        console.print(styled("[dim]Ray: {} nodes, {:g} GPUs[/]", len(found.ray), gpus))
    _show_rest(console, found)


def _show_behind(console: Console, found: Status) -> None:
    """Show what is behind the endpoint where it is not one server."""

    for model in found.models:
        names = ", ".join((model.model, *model.aliases))
        shown = (names, model.kind, model.node, model.state)
        console.print(styled("[bold]{}[/]  [dim]{} on {}, {}[/]", *shown), soft_wrap=True)
    if found.replicas:
        states = ", ".join(f"{one.node} {one.state}" for one in found.replicas)
        console.print(styled("[dim]replicas: {}[/]", states))


def _show_rest(console: Console, found: Status) -> None:

    if found.tuned:
        text = f"started with tuned kernels: {', '.join(found.tuned)}"
        console.print(painted(text, "dim"), soft_wrap=True)
    if found.caches is not None:
        console.print(painted(str(found.caches), "dim"), soft_wrap=True)
    for problem in found.problems:
        console.print(styled("{} {}", mark("fail"), problem), soft_wrap=True)
    if found.problems:
        console.print(painted(_advice(found), "cyan"))


def _advice(found: Status) -> str:
    if found.state == "starting":
        return (
            "it is loading: spark-cluster up waits for it, spark-cluster logs shows how far it is"
        )
    if not all(node.reachable for node in found.nodes):
        return "every node must be reachable first: spark-cluster ping shows more"
    if any("is the cable in?" in problem for problem in found.problems):
        return (
            "plug the QSFP cable in, then run it again; spark-cluster doctor --only link shows more"
        )
    if found.replicas:
        count = len(found.replicas)
        return f"spark-cluster up --replicas {count} repairs it; spark-cluster logs shows more"
    status = f"spark-cluster up {found.overrides}".rstrip()
    return f"{status} repairs it; spark-cluster logs shows more"


MARKS = {"ok": "ok", "failed": "fail", "not applicable": "info", "not run": "warn"}


class Verifying(TypedDict):
    """What is handed on to `Cluster.verify`."""

    only: tuple[str, ...]
    skip: tuple[str, ...]
    timeout_s: Annotated[float, click.FloatRange(min=1.0)] | None
    context: Annotated[int, click.IntRange(min=1024)] | None
    model: str | None


@click.command(cls=Command)
def verify(app: App, **given: Unpack[Verifying]) -> int:
    """Ask the running server what users will ask it, and judge the answers.

    Short answers, coherence, tool calls in eight ways, reasoning, pictures, and more; embeddings,
    scores or a transcript where that is the model's kind. What the server cannot do by its launch
    or by its own answer is not applicable, unless its recipe promises it.

    Exit status 5 when a check fails.

    Args:
        only (CHECK): Run only this check, or the checks of this rung; repeatable.
        skip (CHECK): Leave out this check, or the checks of this rung; repeatable.
        timeout_s (--timeout SECONDS): Longest time that one answer may take (default: 900).
        context (TOKENS): Longest prompt of the context check, and its answer (default: what the
            server states).
        model (NAME): Model to verify, where the endpoint has several.
    """
    found = app.cluster.verify(**given)
    app.show(found, _show_verification)
    return 5 if found.failed else 0


def _show_verification(app: App, found: Verification) -> None:
    short = ("test", "streamed", "s")
    table = plain_table(
        "", *short, "result", whole=short, right=("s",), fold=("result",), wide=True
    )
    for verdict in found.verdicts:
        ran = verdict.status != "not run"
        table.add_row(
            mark(MARKS[verdict.status]),
            verdict.title,
            "yes" if verdict.streamed else "no",
            f"{verdict.seconds:.1f}" if ran else "",
            _result(verdict),
        )
    console = app.console
    console.print(_summary(found), soft_wrap=True)
    console.print(table)
    for size in found.other_sizes:
        console.print(styled("{} {}", mark("warn" if size.different else "ok"), _compared(size)))
        for one in size.different:
            where = (one.id, found.tp, one.now, size.tp, one.before)
            console.print(styled("  {}: tp {}: {}; tp {}: {}", *where), soft_wrap=True)
    if found.under_load:
        held = ", ".join(f"{one.name} {one.used_mib:,} MiB" for one in found.under_load)
        console.print(painted(f"GPU memory under load, at most: {held}", "dim"), soft_wrap=True)
    for verdict in found.failed:
        console.print(styled("\n{} [bold]{}[/]", mark("fail"), verdict.id))
        rows = ("asked", verdict.request), ("expected", verdict.expected), ("found", verdict.found)
        for name, text in rows:
            console.print(styled("  [dim]{}[/] {}", f"{name:8}", text), soft_wrap=True)
        console.print(painted(f"  {verdict.fix}", "cyan"), soft_wrap=True)


def _compared(size: ComparedSize) -> str:
    count = len(size.same) + len(size.different)
    if not size.different:
        return f"short answers: all {count} are those of tp {size.tp} ({size.at})"
    return f"short answers: {len(size.different)} of {count} differ from tp {size.tp} ({size.at})"


def _result(verdict: CheckVerdict) -> str:
    if verdict.status == "ok":
        return verdict.found
    if verdict.status == "failed":
        return "failed"
    return f"{verdict.status}: {verdict.found}"


def _summary(found: Verification) -> object:

    styles = {"failed": "red", "not applicable": "dim", "not run": "yellow", "ok": "green"}
    counts = {status: found.count(status) for status in ("failed", "not run", "ok")}
    counts["not applicable"] = found.count("not applicable")
    parts = [painted(f"{n} {s}", styles[s]) for s, n in counts.items() if n or s == "ok"]
    where = (found.model, found.endpoint, found.tp, found.recipe)
    about = styled("  [bold]{}[/] at {}  [dim]tp {}, recipe {}[/]", *where)
    return joined(parts, ", ") + about


class Stopping(TypedDict):
    """What is handed on to `Cluster.down`."""

    unload: Unloading
    end_jobs: EndingJobs
    options: Changing


@click.command(cls=Command)
def down(app: App, **given: Unpack[Stopping]) -> None:
    """Stop the server and Ray on all nodes.

    Jobs that run on Ray are not ended without --end-jobs.

    Succeeds only when `nvidia-smi --query-compute-apps` lists nothing on any of them; otherwise it
    names the process ids and programs that hold memory.
    """
    app.show(app.cluster.down(**given), show_stopped)


def show_stopped(app: App, found: DownResult) -> None:
    """Print the recap, and the memory before and after."""
    app.show_recap()
    if found.stopped is not None:
        app.console.print()
        app.console.print(table(found.stopped.now, before=found.stopped.before))
