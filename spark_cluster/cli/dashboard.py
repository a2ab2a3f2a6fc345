"""`dashboard`: a web page of the nodes, on this machine."""

from __future__ import annotations

import contextlib
import webbrowser
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated

import click

from spark_cluster.cli.app import App, ended_by_signals
from spark_cluster.cli.options import Command
from spark_cluster.errors import Failed


@click.command(cls=Command)
def command(
    app: App,
    *,
    port: Annotated[int, click.IntRange(0, 65535)] = 0,
    interval: Annotated[float, click.FloatRange(min=0.5, max=60.0)] = 1.0,
    open_it: bool,
) -> None:
    """Show the nodes in a browser until Ctrl-C: memory by process, traffic, engine, runs, findings.

    The page is served on this machine's loopback only, and its address has a token that is new
    each time. It only shows: nothing can be changed from it. Commands that it offers (status, vram,
    doctor, history, logs) are run when you press their button.

    Args:
        port (PORT): Port of this machine (default: one that is free).
        interval: Seconds between two samples of a node. [default]
        open_it (--open): Open the page in the browser.
    """
    from spark_cluster.bench.sampling import Sampling, metrics_url
    from spark_cluster.cli.bench_measure import RESULTS
    from spark_cluster.dashboard.server import listen, need_libraries, serve
    from spark_cluster.dashboard.sources import Feed, Questions

    need_libraries()
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
            questions=Questions(_options(app)),
            runs=runs,
            tell=_teller(app, kept if open_it else None),
        )


def _options(app: App) -> list[str]:
    """The options of this command line that the commands of the page get, too."""
    opened = app.cluster
    given = (("-i", opened.named), ("--project", opened.named_project), ("-l", opened.limit))
    return [word for option, value in given if value for word in (option, str(value))]


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

    try:
        file = NamedTemporaryFile(  # noqa: SIM115  (closed below)
            "w", dir=Path.home(), prefix="spark-cluster-dashboard-", suffix=".html"
        )
    except OSError as error:
        raise Failed(
            f"the file for the browser cannot be written in {Path.home()}: {error.strerror}",
            hint="leave out --open, and open the address that is printed",
        ) from None
    with file:
        file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={address}">\n')
        file.flush()
        yield Path(file.name)
