"""`top`: the nodes live."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.ended_by_signals import ended_by_signals
from spark_cluster.cli.visible import show_error, visible
from spark_cluster.errors import SparkClusterError

if TYPE_CHECKING:
    from spark_cluster.bench.sampling import LiveState, Sampling, Update
    from spark_cluster.bench.telemetry_file import JsonLinesWriter

LOOK_S = 0.5
"""Seconds after which the picture is drawn again, also when nothing comes."""


@click.command()
@click.option(
    "--interval",
    type=click.FloatRange(min=0.2, max=60.0),
    default=1.0,
    show_default=True,
    help="Seconds between two samples of a node.",
)
@click.option(
    "--count",
    type=click.IntRange(min=1),
    help="End after so many samples of each node that answers.",
)
@click.option("--duration", type=click.FloatRange(min=0.0), help="End after so many seconds.")
@click.option(
    "--record",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Also write all samples to a new file: Parquet for .parquet, otherwise JSON lines.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON line for each sample.")
@click.pass_context
def command(
    ctx: click.Context,
    interval: float,
    count: int | None,
    duration: float | None,
    record: Path | None,
    as_json: bool,
) -> None:
    """Show the nodes live until Ctrl-C: GPU, clocks, power, memory by process, link, tokens.

    A small process on each node samples it, and ends with this command. Throttling, low clocks
    under load and swapping are flagged. A node that stops answering is shown as such, and connected
    to again. Without a terminal there is a line for each sample.

    With --count or --duration, exit status 3 when a node never answered.
    """
    app: App = ctx.obj
    app.as_json = app.as_json or as_json
    from spark_cluster.bench.sampling import LiveState, Sampling, metrics_url
    from spark_cluster.bench.telemetry_file import writer

    nodes = app.nodes
    app.import_meanwhile("rich.live")
    metrics = metrics_url(app.inventory.serve)
    live = LiveState([node.name for node in nodes], interval)
    with contextlib.ExitStack() as stack:
        stack.enter_context(ended_by_signals())
        kept = None if record is None else writer(record)
        if kept is not None:
            stack.callback(kept.close)
        sampling = Sampling(nodes, app.cluster.dialer, every=interval, metrics=metrics)
        with contextlib.suppress(KeyboardInterrupt), sampling:
            until = None if duration is None else time.monotonic() + duration
            try:
                _show(app, live, _updates(live, sampling, kept, count, until))
            except SparkClusterError as error:
                if not app.as_json:
                    raise
                # Its line is there already: a document of several lines is no JSON line.
                show_error(error.message, error.hint, node=error.where)
                ctx.exit(error.exit_code)
    if (count is not None or duration is not None) and live.never_seen():
        _tell_missing(live)
        ctx.exit(3)


def _updates(
    live: LiveState,
    sampling: Sampling,
    kept: JsonLinesWriter | None,
    count: int | None,
    until: float | None,
) -> Iterator[Update | None]:
    """Yield what is news, and None now and then when nothing comes.

    Raises:
        SparkClusterError: no node can be reached.
    """
    from spark_cluster.bench.telemetry import Row

    while not (count is not None and live.has(count)):
        left = LOOK_S if until is None else min(LOOK_S, until - time.monotonic())
        if left <= 0:
            return
        update = sampling.next(left)
        is_news = update is not None and live.take(update)
        if kept is not None and isinstance(update, Row):
            kept.write(update)
        yield update if is_news else None
        error = live.first_loss()
        if error is not None:
            raise error


def _show(app: App, live: LiveState, updates: Iterator[Update | None]) -> None:
    if app.as_json:
        for update in updates:
            if update is not None:
                click.echo(json.dumps(_line_document(update)))
    elif app.console.is_terminal:
        _draw(app, live, updates)
    else:
        from spark_cluster.cli.top_picture import line

        for update in updates:
            if update is not None:
                click.echo(visible(line(update)))


def _draw(app: App, live: LiveState, updates: Iterator[Update | None]) -> None:
    from rich.live import Live

    from spark_cluster.cli.top_picture import picture

    with Live(picture(live), console=app.console, auto_refresh=False) as display:
        for _ in updates:
            display.update(picture(live), refresh=True)


def _line_document(update: Update) -> dict[str, object]:
    """A line of --json: a sample, or a node that was lost."""
    from spark_cluster.bench.telemetry import Row

    if isinstance(update, Row):
        return update.to_dict()
    return {"node": update.node, **update.error.to_dict()}


def _tell_missing(live: LiveState) -> None:
    for node in live.never_seen():
        if node.lost is not None:
            show_error(node.lost.message, node.lost.hint, node=node.name)
        else:
            show_error("it has sent nothing", node=node.name)
