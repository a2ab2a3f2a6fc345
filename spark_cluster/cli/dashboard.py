"""`dashboard`: a web page of the nodes, on this machine."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.ended_by_signals import ended_by_signals
from spark_cluster.cli.visible import visible

if TYPE_CHECKING:
    from collections.abc import Callable


@click.command()
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="PORT",
    help="Port of this machine (default: one that is free).",
)
@click.option(
    "--interval",
    type=click.FloatRange(min=0.5, max=60.0),
    default=1.0,
    show_default=True,
    help="Seconds between two samples of a node.",
)
@click.option("--open", "open_it", is_flag=True, help="Open the page in the browser.")
@click.pass_obj
def command(app: App, port: int, interval: float, open_it: bool) -> None:
    """Show the nodes in a browser until Ctrl-C: memory by process, traffic, engine, runs, findings.

    The page is served on this machine's loopback only, and its address has a token that is new
    each time. It only shows: nothing can be changed from it. Commands that it offers (status, vram,
    doctor, history, logs) are run when you press their button.
    """
    app.connect_early("top")
    from spark_cluster.bench.sampling import Sampling, metrics_url
    from spark_cluster.cluster.bench import RESULTS
    from spark_cluster.dashboard.feed import Feed
    from spark_cluster.dashboard.questions import Questions
    from spark_cluster.dashboard.server import listen, need_libraries, serve

    need_libraries()
    nodes = app.nodes
    feed = Feed([node.name for node in nodes], interval)
    sampling = Sampling(nodes, every=interval, metrics=metrics_url(app.inventory.serve))
    listener = listen(port)
    runs = app.project.folder / RESULTS
    with contextlib.suppress(KeyboardInterrupt), ended_by_signals(), sampling:
        serve(
            listener,
            feed,
            sampling,
            questions=Questions(_options(app)),
            runs=runs,
            tell=_teller(app, open_it),
        )


def _options(app: App) -> list[str]:
    """The options of this command line that the commands of the page get, too."""
    given = (("-i", app.inventory_name), ("--project", app.project_folder), ("-l", app.limit))
    return [word for option, value in given if value for word in (option, value)]


def _teller(app: App, open_it: bool) -> Callable[[str], None]:
    def tell(address: str) -> None:
        if app.as_json:
            app.print_json({"url": address})
        else:
            click.echo(visible(address))
            click.echo("Ctrl-C ends it.")
        if open_it:
            import webbrowser

            webbrowser.open(address)

    return tell
