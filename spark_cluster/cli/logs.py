"""`logs`: the logs of the serving containers; with --bundle all that an issue report may need."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import as_completed
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import click

from spark_cluster.cli.app import App
from spark_cluster.cli.doctor import diagnose, document
from spark_cluster.cli.options import Command, hub
from spark_cluster.cli.serving import probe_of, usual_recipe
from spark_cluster.cli.visible import LinePrinter, coloured, lines_of
from spark_cluster.config.caches import state_folder
from spark_cluster.config.document import as_json
from spark_cluster.engine.names import RAY
from spark_cluster.errors import SparkClusterError, UsageError

if TYPE_CHECKING:
    from spark_cluster.doctor.bundle_archive import BundleArchive
    from spark_cluster.engine.runtime import Name
    from spark_cluster.runner.play import Play
    from spark_cluster.runner.session import Pending

AUTOMATIC = "-"
"""The name of an archive for which none was given."""

RECORDS = 3
"""Records of runs in an archive, the newest ones."""


@click.command(cls=Command)
def command(
    app: App,
    *,
    follow: bool,
    tail: int = 50,
    only: Literal["vllm", "ray"] | None,
    bundle: Annotated[str | None, {"flag_value": AUTOMATIC, "is_flag": False}],
) -> None:
    """Show the logs of vLLM and Ray on every node, each line with its node and container.

    Colours are kept on a terminal; any other control sequence of a log is shown escaped (\\x1b...).

    With --bundle nothing is shown: logs, journals, docker inspect without values of variables,
    versions, facts, doctor's findings, status, plan and the last runs' records go into an archive.

    Args:
        follow (-f, --follow): Follow the logs until Ctrl-C.
        tail (-n, --tail): Number of lines from the end. [default]
        only (--container): Only this one; vllm is the server of every model.
        bundle ([FILE]): Write all that an issue report needs into one archive, secrets masked.
    """
    if bundle is not None:
        if follow or only:
            raise UsageError("--bundle cannot be combined with --follow or --container")
        _write_bundle(app, "" if bundle == AUTOMATIC else bundle)
        return
    from spark_cluster.engine import logs
    from spark_cluster.engine.runtime import present_programs

    with app.play("logs", app.nodes, change=False, gather_facts=False) as run:
        play = run.open()
        wanted = {
            node: [name for name in names if only is None or (only == "ray") == (name == RAY)]
            for node, names in present_programs(play).items()
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
    from spark_cluster.engine.runtime import follow
    from spark_cluster.runner.parallel import start

    def stream(pending: Pending, printer: LinePrinter) -> None:
        try:
            pending.wait(lambda event: printer.add(event.get("text", "")))
        finally:
            printer.end()

    streams = []
    for (node, name), runtime in found.items():
        argv = follow(name, tail, runtime)
        pending = play.connections.session(node).submit("stream", argv=argv)
        printer = LinePrinter(f"{node} {name.removeprefix('spark-')}: ")
        streams.append(partial(stream, pending, printer))
    for ended in as_completed(map(start, streams)):
        error = ended.result()
        if error is not None:
            raise error


def _write_bundle(app: App, file: str) -> None:
    """Collect and write it; what cannot be had is said in the archive, and ends nothing.

    Args:
        file: its path; empty where a name is to be made.
    """
    from spark_cluster.doctor.bundle_archive import BundleArchive, listed, must_be_new

    name = f"spark-cluster-{datetime.now(UTC):%Y%m%d-%H%M%S}"
    path = Path(file or f"{name}.tar.gz").absolute()
    must_be_new(path)
    archive = BundleArchive(name, frozenset(_secrets(app)))
    _collect(app, archive)
    archive.write(path)
    if app.as_json:
        contents = listed(archive.entries)
        app.print_json({"file": str(path), "contents": contents, "left_out": archive.left_out})
        return
    for entry in archive.entries:
        cut = ", its middle is cut" if entry.cut else ""
        app.console.print(f"  {entry.name}  {entry.bytes:,} bytes{cut}", soft_wrap=True)
    app.console.print(f"{path}: {path.stat().st_size:,} bytes", soft_wrap=True)
    app.console.print("secrets are masked; look through it before you publish it", soft_wrap=True)


def _collect(app: App, archive: BundleArchive) -> None:
    from spark_cluster.cli.version import versions

    archive.add_json("versions.json", as_json(versions(app)))
    _attempt(archive, "doctor", lambda: archive.add_json("doctor.json", document(diagnose(app))))
    with app.play("logs --bundle", app.nodes, change=False) as run:
        play = run.open(fail_fast=False)
        for name, error in play.out.items():
            archive.add_json(f"nodes/{name}/error.json", error.to_dict())
        for node in play.nodes:
            facts = {"name": node.name, "links": node.links, **as_json(node.facts)}
            archive.add_json(f"nodes/{node.name}/facts.json", facts)
            _attempt(archive, f"nodes/{node.name}/logs", partial(_node, archive, play, node.name))
        _attempt(archive, "status", lambda: archive.add_json("status.json", _status(app, play)))
        _attempt(archive, "plan", lambda: _plan(app, play, archive))
    _records(archive)


def _attempt(archive: BundleArchive, name: str, part: Callable[[], None]) -> None:
    """Add a part, or why there is none."""
    try:
        part()
    except SparkClusterError as error:
        archive.add_json(f"{name}.error.json", error.to_dict())


def _node(archive: BundleArchive, play: Play, name: str) -> None:
    from spark_cluster.doctor.bundle_archive import ask

    for file, text in ask(play.connections.session(name)).items():
        archive.add(f"nodes/{name}/{file}", text)


def _status(app: App, play: Play) -> dict[str, Any]:
    """As `status` says it, without the caches; no password is asked for."""
    from spark_cluster.engine import state

    secret = app.inventory.serve.api_key
    key = secret.read("the API key") if secret is not None else None
    return state.status(play, key, probe_of(None)).to_dict()


def _plan(app: App, play: Play, archive: BundleArchive) -> None:
    """The inventory's recipe and its plan on these nodes; the hub is not asked."""
    from spark_cluster.bench.references import own_evidence
    from spark_cluster.config.launch import of_recipe
    from spark_cluster.engine.survey import survey
    from spark_cluster.plan.planner import PlannedLoad, Planner, of_a_recipe

    recipe = usual_recipe(app.cluster)
    if recipe is None:
        return
    archive.add_json("recipe.json", recipe.model_dump(mode="json", exclude={"env"}))
    launch = of_recipe(recipe, recipe.size_for(len(play.nodes)))
    subject = of_a_recipe(recipe, launch)
    rooms, facts = survey(play, subject.node_path)
    planner = Planner(app.project, hub(offline=True), partial(own_evidence, app.project))
    archive.add_json("plan.json", planner.plan(subject, rooms, PlannedLoad(), facts).to_dict())


def _records(archive: BundleArchive) -> None:

    records = sorted((state_folder() / "runs").glob("*.jsonl"), reverse=True)
    for path in records[:RECORDS]:
        archive.add(f"runs/{path.name}", path.read_text(errors="replace"))


def _secrets(app: App) -> Iterator[str]:
    """The secrets that the inventory names and that are at hand: none is asked for."""
    named = (app.inventory.serve.api_key, *(node.become.password for node in app.nodes))
    for secret in named:
        if secret is None or secret.prompt:
            continue
        try:
            yield secret.read("a secret")
        except SparkClusterError:
            continue  # it is not at hand, so nothing of it can be told from other text
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        if value := os.environ.get(name):
            yield value
