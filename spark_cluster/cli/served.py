"""What is served: `status`, `verify`, `down`, and its GPU memory: `vram`."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack

import click

from spark_cluster.cli.app import App, ended_by_signals
from spark_cluster.cli.console import mark, painted, plain_table, styled, tally
from spark_cluster.cli.options import Changing, DeclaredCommand, EndingJobs, Positive, Unloading
from spark_cluster.errors import SparkClusterError, UsageError
from spark_cluster.node.output import counted

if TYPE_CHECKING:
    from rich.table import Table

    from spark_cluster.cli.serving import DownResult
    from spark_cluster.cli.terminal import Console
    from spark_cluster.engine.result import Status
    from spark_cluster.engine.verify import (
        CheckVerdict,
        ComparedSize,
        VerdictStatus,
        Verification,
    )
    from spark_cluster.engine.vram import NodeVram
    from spark_cluster.runner.session import Session


STYLES = {
    "serving": "green",
    "starting": "yellow",
    "degraded": "yellow",
    "interrupted": "yellow",
    "failed": "red",
    "stopped": "dim",
}

LAST = "last"
"""In place of a run's id: the last run on this machine that read memory."""


@click.command(cls=DeclaredCommand)
def status(app: App) -> int:
    """Show what is served and what is wrong: containers, Ray, health, and a real completion.

    Exit status 5 when the state is failed, interrupted or degraded, 3 when no node can be reached.
    """
    found = app.cluster.status()
    app.show(found, _show_status)
    return 5 if found.state in ("failed", "interrupted", "degraded") else 0


def _show_status(app: App, found: Status) -> None:
    verdict = painted(found.state, f"bold {STYLES[found.state]}")
    if found.model:
        kind = f"{found.kind}, " if found.kind not in (None, "chat") else ""
        number = len(found.replicas)
        ranks = f", {found.data_parallel} data-parallel ranks" if found.data_parallel > 1 else ""
        size = f"{number} replicas" if number else f"tp {found.tp}{ranks}"
        verdict += styled("  {} at {}  [dim]{}{}[/]", found.model, found.endpoint, kind, size)
        if found.overrides:
            verdict += styled("  [dim]{}[/]", found.overrides)
    if found.models:
        verdict += styled("  {} models at {}", len(found.models), found.endpoint)
    app.console.print(verdict)
    if found.access is not None:
        app.console.print(painted(str(found.access), "dim"))
    runtimes = {
        one.runtime
        for node in found.nodes
        for one in node.containers.values()
        if one.status != "absent"
    }
    program = "unit" if runtimes == {"venv"} else "container"
    table = plain_table("node", program, "state", "restarts")
    for node in found.nodes:
        if not node.reachable:
            table.add_row(node.name, "", painted("unreachable", "red"), "")
        for name, container in node.containers.items():
            if container.status != "absent":
                table.add_row(node.name, name, container.status, str(container.restarts))
    if table.row_count:
        app.console.print(table)
    _show_behind(app.console, found)
    if found.ray:
        gpus = sum(node.gpus for node in found.ray)
        nodes = counted(len(found.ray), "node")
        app.console.say("[dim]Ray: {}, {:g} GPU{}[/]", nodes, gpus, "" if gpus == 1 else "s")
    _show_rest(app, found)


def _show_behind(console: Console, found: Status) -> None:
    """Show what is behind the endpoint where it is not one server."""

    for model in found.models:
        names = ", ".join((model.model, *model.aliases))
        console.say("[bold]{}[/]  [dim]{} on {}, {}[/]", names, model.kind, model.node, model.state)
    if found.replicas:
        states = ", ".join(f"{one.node} {one.state}" for one in found.replicas)
        console.say("[dim]replicas: {}[/]", states)


def _show_rest(app: App, found: Status) -> None:
    if found.tuned:
        text = f"started with tuned kernels: {', '.join(found.tuned)}"
        app.console.print(painted(text, "dim"))
    if found.caches is not None:
        app.console.print(painted(str(found.caches), "dim"))
    for problem in found.problems:
        app.console.say("{} {}", mark("fail"), problem)
    if found.problems or found.state == "stopped":
        app.console.print(painted(_advice(app, found), "cyan"))


def _advice(app: App, found: Status) -> str:
    """Return what to do, with commands about the same nodes."""
    from spark_cluster.config.launch import quoted_options  # late, for --help

    logs, ping = app.command("logs"), app.command("ping")
    if found.state == "starting":
        return f"it is loading: {app.command('up')} waits for it, {logs} shows how far it is"
    if not all(node.reachable for node in found.nodes):
        return f"every node must be reachable first: {ping} shows more"
    if any("is the cable in?" in problem for problem in found.problems):
        doctor = app.command("doctor --only link")
        return f"plug the QSFP cable in, then run it again; {doctor} shows more"
    if found.replicas:
        repair = app.command(f"up --replicas {len(found.replicas)}")
        return f"{repair} repairs it; {logs} shows more"
    command = app.command(f"up {quoted_options(found.overrides)}".rstrip())
    if found.state == "stopped" and not found.problems:
        return f"to serve: {command}"
    more = f"repairs it; {logs} shows more"
    if found.state == "interrupted":
        more = f"continues what `up` began, {app.command('down')} ends it"
    return f"{command} {more}"


MARKS = {"ok": "ok", "failed": "fail", "not applicable": "info", "not run": "warn"}


class Verifying(TypedDict):
    """What is handed on to `Cluster.verify`."""

    only: tuple[str, ...]
    skip: tuple[str, ...]
    timeout_s: Annotated[float, click.FloatRange(min=1.0)] | None
    context: Annotated[int, click.IntRange(min=1024)] | None
    model: str | None


@click.command(cls=DeclaredCommand)
def verify(app: App, **given: Unpack[Verifying]) -> int:
    """Ask the running server what users will ask it, and judge the answers.

    Short answers, coherence, tool calls in eight ways, reasoning, pictures, and more; embeddings,
    scores or a transcript where that is the model's kind. A check of something that the server was
    not started with, or says it does not support, is reported as not applicable, unless the recipe
    promises it.

    Exit status 5 when a check fails.

    Args:
        only (CHECK): Run only this check, or this group of checks; repeatable.
        skip (CHECK): Leave out this check, or this group of checks; repeatable.
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
    table = plain_table("", *short, "result", whole=short, right=("s",), wide=True)
    alike: dict[tuple[VerdictStatus, str], list[CheckVerdict]] = {}
    for verdict in found.verdicts:
        if verdict.status in ("not applicable", "not run") and not app.verbose:
            alike.setdefault((verdict.status, _reason(verdict)), []).append(verdict)
            continue
        ran = verdict.status != "not run"
        table.add_row(
            mark(MARKS[verdict.status]),
            verdict.title,
            "yes" if verdict.streamed else "no",
            f"{verdict.seconds:.1f}" if ran else "",
            _result(verdict),
        )
    app.console.print(_summary(found))
    if table.row_count:
        app.console.print(table)
    for (status, why), verdicts in alike.items():
        app.console.say("{}  {}, {}: {}", mark(MARKS[status]), status, _named(verdicts), why)
    for size in found.other_sizes:
        app.console.say("{} {}", mark("warn" if size.different else "ok"), _compared(size))
        for one in size.different:
            where = (one.id, found.tp, one.now, size.tp, one.before)
            app.console.say("  {}: tp {}: {}; tp {}: {}", *where)
    if found.under_load:
        held = ", ".join(f"{one.name} {one.used_mib:,} MiB" for one in found.under_load)
        app.console.print(painted(f"GPU memory under load, at most: {held}", "dim"))
    for verdict in found.failed:
        app.console.say("\n{} [bold]{}[/]", mark("fail"), verdict.id)
        rows = ("asked", verdict.request), ("expected", verdict.expected), ("found", verdict.found)
        for name, text in rows:
            app.console.say("  [dim]{}[/] {}", f"{name:8}", text)
        app.console.print(painted(f"  {app.to_paste(verdict.fix)}", "cyan"))


def _compared(size: ComparedSize) -> str:
    count = len(size.same) + len(size.different)
    if not size.different:
        return f"short answers: the same as with tp {size.tp} ({size.at})"
    return f"short answers: {len(size.different)} of {count} differ from tp {size.tp} ({size.at})"


def _named(verdicts: Sequence[CheckVerdict]) -> str:
    """Return the groups of checks that have one and the same verdict, and how many they are."""
    groups = dict.fromkeys(verdict.rung.replace("_", " ") for verdict in verdicts)
    return f"{counted(len(verdicts), 'test')} ({', '.join(groups)})"


def _result(verdict: CheckVerdict) -> str:
    if verdict.status == "ok":
        return verdict.found
    if verdict.status == "failed":
        return "failed"
    return f"{verdict.status}: {_reason(verdict)}"


def _reason(verdict: CheckVerdict) -> str:
    """Return why a check has no result, without its title, which stands next to it."""
    _, refused, why = verdict.found.partition(": the request failed ")
    return f"the request failed {why}" if refused else verdict.found


def _summary(found: Verification) -> object:
    styles: Mapping[VerdictStatus, str] = {
        "failed": "red", "not run": "yellow", "ok": "green", "not applicable": "dim"
    }  # fmt: skip
    where = (found.model, found.endpoint, found.tp, found.recipe)
    about = styled("  [bold]{}[/] at {}  [dim]tp {}, recipe {}[/]", *where)
    return tally(styles, found.count) + about


class Stopping(TypedDict):
    """What is handed on to `Cluster.down`."""

    unload: Unloading
    end_jobs: EndingJobs
    options: Changing


@click.command(cls=DeclaredCommand)
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
        app.console.print(vram_table(found.stopped.now, before=found.stopped.before))


# -- `vram`: each node's GPU memory by process, and that of recorded runs --------------------------


@click.command(cls=DeclaredCommand)
def vram(
    app: App,
    *,
    watch: bool,
    interval: Annotated[float, click.FloatRange(min=0.5, max=3600.0)] = 2.0,
    count: Positive | None,
    run_id: str | None,
    plot: Annotated[Path, click.Path(dir_okay=False, path_type=Path)] | None,
) -> int:
    """Show which processes hold GPU memory on each node, as the host sees them.

    On a Spark the GPU's memory is the machine's: MemTotal and MemAvailable are shown next to it.
    With --watch the largest sum so far is shown too; --json then prints one line for each reading.
    Each `up`, `swap` and `down` records it by phase (before, loading, ready, under load, stopped):
    --run shows that of a run, --plot draws it. Where a node is not reached, the others are shown,
    with exit status 3.

    Args:
        watch: Read again and again until Ctrl-C, with the peak.
        interval: With --watch: seconds between two readings. [default]
        count: With --watch: end after this many readings.
        run_id (--run RUN): Show the memory of a run that was recorded on this machine, by phase,
            and ask no node; `last` for the last one.
        plot (FILE): Draw the memory of a recorded run over time, as SVG or PNG; without --run that
            of the last one.
    """
    if run_id is not None or plot is not None:
        _show_recorded(app, run_id or LAST, plot, watch=watch)
        return 0
    nodes, lost = app.nodes, dict[str, SparkClusterError]()
    app.import_meanwhile("rich.live" if watch else "spark_cluster.cli.results")
    if watch:
        with app.cluster.dialer.sessions(nodes, "vram") as sessions:
            with contextlib.suppress(KeyboardInterrupt), ended_by_signals():
                readings = _readings(sessions, interval, count)
                app.follow(readings, _reading if app.as_json else _picture, _picture)
            return 0
    found = app.cluster.vram(lost)
    app.show(found, lambda app, found: app.console.print(vram_table(found.nodes)))
    return app.tell_lost(lost)


Readings = tuple[list["NodeVram"], list["NodeVram"]]
"""A reading of each node, and its largest so far."""


def _readings(
    sessions: Mapping[str, Session], interval: float, count: int | None
) -> Iterator[Readings]:
    """Yield readings without end, or so many; a node that is lost ends it with its error."""
    from spark_cluster.engine.vram import peak as peak_of
    from spark_cluster.engine.vram import sample

    peak: list[NodeVram] = []
    for number in itertools.count(1):
        started = time.monotonic()
        now = sample(sessions)
        peak = peak_of(peak, now)
        yield now, peak
        if number == count:
            return
        time.sleep(max(0.0, interval - (time.monotonic() - started)))


def _reading(found: Readings) -> dict[str, Any]:
    largest = {reading.name: reading.used_mib for reading in found[1]}
    nodes = [{**one.to_dict(), "peak_mib": largest[one.name]} for one in found[0]]
    return {"at": time.time(), "nodes": nodes}


def _picture(found: Readings) -> Table:
    return vram_table(*found)


def vram_table(
    readings: Sequence[NodeVram],
    peak: list[NodeVram] | None = None,
    before: list[NodeVram] | None = None,
    under_load: list[NodeVram] | None = None,
) -> Table:
    """Return the table of processes, and of each node's sum next to the node's total.

    Args:
        peak, before, under_load: other readings of the nodes, whose sums are shown next to it.
    """
    others = {"peak": peak, "before": before, "under load": under_load}
    shown = {title: {one.name: one for one in found} for title, found in others.items() if found}
    figures = ("used MiB", *shown, "available", "total")
    result = plain_table("node", "pid", "process", *figures, right=("pid", *figures))
    for reading in readings:
        for process in reading.processes:
            used = "?" if process.used_mib is None else f"{process.used_mib}"
            empty = [""] * (len(shown) + 2)
            name = f"{process.name} ({process.model})" if process.model else process.name
            result.add_row(reading.name, str(process.pid), name, used, *empty)
        sums = (found.get(reading.name) for found in shown.values())
        result.add_row(
            painted(reading.name, "bold"),
            "",
            painted("sum" if reading.processes else "nothing is held", "dim"),
            painted(str(reading.used_mib), "bold"),
            *("" if one is None else str(one.used_mib) for one in sums),
            str(reading.mem_available_mib),
            str(reading.mem_total_mib),
        )
    return result


def _show_recorded(app: App, run: str | None, file: Path | None, *, watch: bool) -> None:
    """Show the memory of a recorded run by phase, and draw it into a file.

    Raises:
        UsageError: there is no such record, no memory in it, or it cannot be drawn so; or what the
            nodes hold now is asked for, too.
    """
    if watch:
        raise UsageError(
            "--run and --plot are about a recorded run, and --watch asks the nodes now",
            hint="leave one of them out; `spark-cluster top --record FILE` keeps what it reads",
        )
    from spark_cluster.engine import vram

    record = vram.of_run(None if run == LAST else run)
    if file is not None:
        from spark_cluster.bench.report.rendering import write_plot

        write_plot(record, file)
    memory, plot = list(record.phases().nodes.values()), None if file is None else str(file)
    if app.as_json:
        document = {"run": record.run, "command": record.command, "memory": memory}
        app.print_json({**document, "plot": plot})
        return
    app.console.say("[bold]{}[/]  {}", record.run, record.command)
    for node in memory:
        app.console.print(painted(f"  {node}"))
    if file is not None:
        app.console.say("plot  {}", file)
