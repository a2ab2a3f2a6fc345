"""`logs`: the logs of the serving containers."""

from __future__ import annotations

import contextlib
import queue
import threading
from typing import TYPE_CHECKING

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.line_printer import LinePrinter
from spark_cluster.cli.visible import coloured, lines_of
from spark_cluster.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark_cluster.engine.runtime import Name
    from spark_cluster.runner.play import Play
    from spark_cluster.runner.session import Pending


AUTOMATIC = "-"
"""The name of an archive for which none was given."""


@click.command()
@click.option("-f", "--follow", is_flag=True, help="Follow the logs until Ctrl-C.")
@click.option("-n", "--tail", default=50, show_default=True, help="Number of lines from the end.")
@click.option(
    "--container",
    "only",
    type=click.Choice(["vllm", "ray"]),
    help="Only this one; vllm is the server of every model.",
)
@click.option(
    "--bundle",
    is_flag=False,
    flag_value=AUTOMATIC,
    metavar="[FILE]",
    help="Write all that an issue report needs into one archive, secrets masked.",
)
@click.pass_obj
def command(app: App, follow: bool, tail: int, only: str | None, bundle: str | None) -> None:
    """Show the logs of vLLM and Ray on every node, each line with its node and container.

    Colours are kept on a terminal; any other control sequence of a log is shown escaped (\\x1b...).

    With --bundle nothing is shown: logs, journals, docker inspect without values of variables,
    versions, facts, doctor's findings, status, plan and the last runs' records go into an archive.
    """
    if bundle is not None:
        if follow or only:
            raise UsageError("--bundle cannot be combined with --follow or --container")
        from spark_cluster.cli import logs_bundle

        logs_bundle.command(app, "" if bundle == AUTOMATIC else bundle)
        return
    app.connect_early()
    from spark_cluster.engine import logs
    from spark_cluster.engine.names import RAY
    from spark_cluster.engine.programs import programs_there
    from spark_cluster.runner.options import Options

    with app.play("logs", app.nodes, Options(), change=False, gather_facts=False) as run:
        play = run.open()
        wanted = {
            node: [name for name in names if only is None or (only == "ray") == (name == RAY)]
            for node, names in programs_there(play).items()
        }
        found = _present(play, wanted)
        run.finish()
        if follow:
            with contextlib.suppress(KeyboardInterrupt):
                _follow(play, found, tail)
            return
        texts = {
            (node, name): logs.read(play.connections.session(node), name, lines=tail)
            for node, name in found
        }
    if app.as_json:
        app.print_json(
            {"logs": [{"node": n, "container": c, "text": t} for (n, c), t in texts.items()]}
        )
        return
    if not texts:
        click.echo("no container of spark-cluster is on these nodes", err=True)
    for (node, name), text in texts.items():
        for line in lines_of(text):
            click.echo(coloured(f"{node} {name.removeprefix('spark-')}: {line}"))


def _present(play: Play, names: Mapping[str, Sequence[str]]) -> dict[tuple[str, str], Name]:
    """Node and program of all that is there, to what runs it.

    Args:
        names: by node the programs that are looked for.
    """
    from spark_cluster.engine.readiness import container_state

    states = {
        (node, name): container_state(play, name, node)
        for node, wanted in names.items()
        for name in wanted
    }
    return {key: state.runtime for key, state in states.items() if state.status != "absent"}


def _follow(play: Play, found: dict[tuple[str, str], Name], tail: int) -> None:
    """Stream all logs at once; whole lines only, so that they do not mix.

    Raises:
        SparkClusterError: the first error of a log, as soon as it is there.
    """
    outcomes: queue.Queue[BaseException | None] = queue.Queue()

    def stream(pending: Pending, printer: LinePrinter) -> None:
        try:
            try:
                pending.wait(lambda event: printer.add(event.get("text", "")))
            finally:
                printer.end()
        except BaseException as error:  # noqa: BLE001  (handed to who waits)
            outcomes.put(error)
        else:
            outcomes.put(None)

    threads = []
    from spark_cluster.engine.runtime import RUNTIMES

    for (node, name), runtime in found.items():
        argv = RUNTIMES[runtime].follow(name, tail)
        pending = play.connections.session(node).submit("stream", argv=argv)
        printer = LinePrinter(f"{node} {name.removeprefix('spark-')}: ")
        threads.append(threading.Thread(target=stream, args=(pending, printer), daemon=True))
    for thread in threads:
        thread.start()
    for _ in threads:
        error = outcomes.get()
        if error is not None:
            raise error
