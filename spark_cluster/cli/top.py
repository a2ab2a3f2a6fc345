"""The nodes live: `top` in the terminal, `dashboard` in a browser."""

from __future__ import annotations

import contextlib
import signal
import time
import webbrowser
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import click

from spark_cluster.bench.sampling import (
    LiveState,
    Sampling,
    Update,
    metrics_url,
    warnings,
)
from spark_cluster.bench.telemetry import JsonLinesWriter, TelemetryRow, writer
from spark_cluster.cli.app import App, ended_by_signals
from spark_cluster.cli.console import painted, plain_table
from spark_cluster.cli.display import show_error
from spark_cluster.cli.options import DeclaredCommand, Positive
from spark_cluster.errors import Failed, SparkClusterError, UsageError, install_extra, naming
from spark_cluster.node.output import gigabytes

if TYPE_CHECKING:
    from rich.table import Table

    from spark_cluster.cli.terminal import RenderableType


MOST_PROCESSES = 6
"""Processes of a node that are shown, the largest first."""

PROCESS_WIDTH = 40
"""Characters of a process's name that are shown."""

NOT_KNOWN = "-"


LOOK_S = 0.5
"""Seconds after which the picture is drawn again, also when nothing comes."""


def _number(value: float | None) -> str:
    return NOT_KNOWN if value is None else f"{value:.0f}"


def _percent(share: float | None) -> str:
    return NOT_KNOWN if share is None else f"{100 * share:.0f}"


def _both(received: float | None, sent: float | None) -> str:
    """Two rates, bytes a second.

    >>> _both(1.2e9, None)
    '1.2 GB/-'
    """
    return "/".join(NOT_KNOWN if rate is None else gigabytes(rate) for rate in (received, sent))


Figures = tuple[tuple[str, str, Callable[[TelemetryRow], str]], ...]
"""The title of a column, empty where there is none; how a line says it; the figure of a sample."""

NODE: Figures = (
    ("GPU %", "GPU {} %", lambda row: _number(row.utilisation)),
    ("SM MHz", "{} MHz", lambda row: _number(row.sm_clock_mhz)),
    ("W", "{} W", lambda row: _number(row.power_w)),
    ("°C", "{} °C", lambda row: _number(row.temperature_c)),
    ("free MiB", "free {} MiB", lambda row: _number(row.mem_available_mib)),
    ("", "GPU memory {} MiB", lambda row: _number(row.gpu_mem_mib)),
    ("RDMA/s in/out", "RDMA/s {}", lambda row: _both(row.rdma_rx_bytes_s, row.rdma_tx_bytes_s)),
    ("net/s in/out", "net/s {}", lambda row: _both(row.net_rx_bytes_s, row.net_tx_bytes_s)),
)
ENGINE: Figures = (
    ("running", "{} running", lambda row: _number(row.running)),
    ("waiting", "{} waiting", lambda row: _number(row.waiting)),
    ("KV %", "KV {} %", lambda row: _percent(row.kv_usage)),
    ("tokens/s", "{} tokens/s", lambda row: _number(row.generation_tps)),
    ("prompt tokens/s", "prompt {} tokens/s", lambda row: _number(row.prompt_tps)),
    ("accepted %", "acceptance {} %", lambda row: _percent(row.acceptance)),
)
"""The last one stands in a line only where something was drafted."""


@click.command(cls=DeclaredCommand)
def top(
    app: App,
    *,
    interval: Annotated[float, click.FloatRange(min=0.2, max=60.0)] = 1.0,
    count: Positive | None,
    duration: Annotated[float, click.FloatRange(min=0.0)] | None,
    record: Annotated[Path, click.Path(path_type=Path, dir_okay=False)] | None,
    as_json: bool,
) -> int:
    """Show the nodes live until Ctrl-C: GPU, clocks, power, memory by process, link, tokens.

    A small process on each node samples it, and ends with this command. Throttling, low clocks
    under load and swapping are flagged. A node that stops answering is shown as such, and
    reconnected. Without a terminal, each sample is printed as a line.

    With --count or --duration, exit status 3 when a node never answered.

    Args:
        interval: Seconds between two samples of a node. [default]
        count: End after this many samples of each node that answers.
        duration: End after this many seconds.
        record (FILE): Also write all samples to a new file: Parquet for .parquet, otherwise JSON
            lines.
        as_json (--json): Print one JSON line for each sample.
    """
    app.as_json = app.as_json or as_json
    nodes = app.nodes
    app.import_meanwhile("rich.live")
    metrics = metrics_url(app.inventory.serve)
    live = LiveState([node.name for node in nodes], interval)
    with contextlib.ExitStack() as stack:
        stack.enter_context(ended_by_signals(*([] if record is None else [signal.SIGINT])))
        kept = None if record is None else writer(record)
        if kept is not None:
            stack.callback(kept.close)
        sampling = Sampling(nodes, app.cluster.dialer, every=interval, metrics=metrics)
        with contextlib.suppress(KeyboardInterrupt), sampling:
            until = None if duration is None else time.monotonic() + duration
            try:
                updates = _updates(live, sampling, kept, count, until)
                told = _document if app.as_json else line
                app.follow(updates, told, lambda _: picture(live))
            except SparkClusterError as error:
                if not app.as_json:
                    raise
                # Its line is there already: a document of several lines is no JSON line.
                show_error(error.message, app.to_paste(error.hint), node=error.where)
                return error.exit_code
    if (count is not None or duration is not None) and live.never_seen():
        _tell_missing(app, live)
        return 3
    return 0


def _updates(
    live: LiveState,
    sampling: Sampling,
    kept: JsonLinesWriter | None,
    count: int | None,
    until: float | None,
) -> Iterator[Update | None]:
    """Yield what is news; and None at first, and now and then when nothing comes.

    Raises:
        SparkClusterError: no node can be reached.
    """
    yield None
    while not (count is not None and live.has(count)):
        left = LOOK_S if until is None else min(LOOK_S, until - time.monotonic())
        if left <= 0:
            return
        update = sampling.next(left)
        is_news = update is not None and live.take(update)
        if kept is not None and isinstance(update, TelemetryRow):
            kept.write(update)
        yield update if is_news else None
        error = live.first_loss()
        if error is not None:
            raise error


def _document(update: Update | None) -> dict[str, Any] | None:
    if isinstance(update, TelemetryRow):
        return update.to_dict()
    return None if update is None else {"node": update.node, **update.error.to_dict()}


def _tell_missing(app: App, live: LiveState) -> None:
    for node in live.never_seen():
        if node.lost is not None:
            show_error(node.lost.message, app.to_paste(node.lost.hint), node=node.name)
        else:
            show_error("it has sent nothing", node=node.name)


# -- the picture: nodes, engine, and memory by process; or a line a sample -------------------------


def picture(live: LiveState) -> RenderableType:
    """Return the whole picture; it fits 80 columns."""
    from spark_cluster.cli.terminal import Group, LiveLine

    parts: list[RenderableType] = [_nodes(live)]
    if (engine := _engine(live)).row_count:
        parts += ["", engine]
    if any(node.processes for node in live.nodes.values()):
        parts += ["", _memory(live)]
    for node in live.nodes.values():
        trouble = live.trouble(node)
        if trouble:
            parts.append(
                LiveLine(painted(f"{node.name}: {trouble}", "red" if node.lost else "dim"))
            )
        elif node.row is not None:
            parts += [
                LiveLine(painted(f"{node.name}: {text}", "yellow")) for text in warnings(node.row)
            ]
    return Group(*parts)


def _nodes(live: LiveState) -> Table:
    shown = [one for one in NODE if one[0]]
    table = _table("node", *(title for title, *_ in shown))
    for node in live.nodes.values():
        row = node.row
        figures = [NOT_KNOWN if row is None else figure(row) for *_, figure in shown]
        if row is not None and row.throttle:
            figures[1] += "!"
        table.add_row(node.name, *figures, style="dim" if live.trouble(node) else "")
    return table


def _engine(live: LiveState) -> Table:
    table = _table("engine on", *(title for title, *_ in ENGINE))
    for node in live.nodes.values():
        if node.row is not None and node.row.running is not None:
            table.add_row(node.name, *(figure(node.row) for *_, figure in ENGINE))
    return table


def _memory(live: LiveState) -> Table:
    figures = ("pid", "MiB")
    table = plain_table("memory on", *figures, "process", right=figures, whole=figures)
    for node in live.nodes.values():
        largest = sorted(node.processes, key=lambda p: -(p.used_mib or 0))
        for process in largest[:MOST_PROCESSES]:
            table.add_row(
                node.name, str(process.pid), _number(process.used_mib), process.name[:PROCESS_WIDTH]
            )
        more = len(largest) - MOST_PROCESSES
        if more > 0:
            table.add_row(node.name, "", "", f"and {more} more")
    return table


def _table(first: str, *others: str) -> Table:
    return plain_table(first, *others, right=others, whole=others)


def line(update: Update | None) -> str | None:
    """Return one line for a sample or a loss, for scripts and files that people read."""
    if update is None:
        return None
    if not isinstance(update, TelemetryRow):
        return f"{update.node}: {update.error.message}"
    parts = [text.format(figure(update)) for _, text, figure in NODE]
    if update.running is not None:
        shown = ENGINE if update.acceptance is not None else ENGINE[:-1]
        parts += [text.format(figure(update)) for _, text, figure in shown]
    return f"{update.time:%H:%M:%S} {update.node}: {', '.join([*parts, *warnings(update)])}"


# -- `dashboard`: a web page of the nodes, on this machine -----------------------------------------


@click.command(cls=DeclaredCommand)
def dashboard(
    app: App,
    *,
    port: Annotated[int, click.IntRange(0, 65535)] = 0,
    interval: Annotated[float, click.FloatRange(min=0.5, max=60.0)] = 1.0,
    open_it: bool,
) -> None:
    """Show the nodes in a browser until Ctrl-C: memory by process, traffic, engine, runs, findings.

    The page is served on this machine's loopback only, and its address has a token that is new
    each time. It is read-only. The commands that it offers (status, vram, doctor, history, logs)
    run when you press their button; status also when the page opens, and when the engine comes or
    goes.

    Args:
        port (PORT): Port of this machine (default: one that is free).
        interval: Seconds between two samples of a node. [default]
        open_it (--open): Open the page in the browser.
    """
    from spark_cluster.cli.bench_measure import RESULTS

    try:
        from spark_cluster.dashboard.server import CommandQuestions, Feed, listen, serve
    except ImportError as error:
        raise UsageError(
            f"the dashboard needs {error.name}, which is not installed",
            hint=install_extra("dashboard"),
        ) from None
    nodes = app.nodes
    feed = Feed([node.name for node in nodes], interval)
    sampling = Sampling(
        nodes, app.cluster.dialer, every=interval, metrics=metrics_url(app.inventory.serve)
    )
    listener = listen(port)
    runs = app.project.folder / RESULTS
    kept = contextlib.ExitStack()
    with contextlib.suppress(KeyboardInterrupt), ended_by_signals(), sampling, kept:
        serve(
            listener,
            feed,
            sampling,
            questions=CommandQuestions(app.given),
            runs=runs,
            tell=_teller(app, kept if open_it else None),
        )


def _teller(app: App, kept: contextlib.ExitStack | None) -> Callable[[str], None]:
    """Return what prints the address, and opens it where something keeps the file for that."""

    def tell(address: str) -> None:
        app.show({"url": address}, f"{address}\nCtrl-C ends it.")
        if kept is not None:
            webbrowser.open(kept.enter_context(leading_to(address)).as_uri())

    return tell


@contextlib.contextmanager
def leading_to(address: str) -> Iterator[Path]:
    """Make a file that only the user can read, and that leads a browser to an address.

    The arguments of a browser can be read by all users of the machine. The file is in the home, and
    not hidden: a browser that is a snap can read neither /tmp nor hidden files.

    Raises:
        Failed: it cannot be written.
    """
    from tempfile import NamedTemporaryFile

    what = f"the file for the browser cannot be written in {Path.home()}"
    with naming(Failed, what, hint="leave out --open, and open the address that is printed"):
        file = NamedTemporaryFile(  # noqa: SIM115  (closed below)
            "w", dir=Path.home(), prefix="spark-cluster-dashboard-", suffix=".html"
        )
    with file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={address}">\n')
        file.flush()
        yield Path(file.name)
