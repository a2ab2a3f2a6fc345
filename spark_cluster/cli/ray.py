"""`ray`: a Ray cluster without a model, and jobs on it."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import sys
import threading
import time
import webbrowser
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict, Unpack

import click

from spark_cluster.cli.app import App, ended_by_signals
from spark_cluster.cli.console import (
    LinePrinter,
    coloured,
    lines_of,
    painted,
    plain_table,
    visible,
)
from spark_cluster.cli.display import tell
from spark_cluster.cli.options import Allowing, Changing, DeclaredGroup, EndingJobs, Port
from spark_cluster.cli.served import show_stopped, vram_table
from spark_cluster.config.ports import LOOPBACK
from spark_cluster.engine.ray import Job, must_be_an_id, must_be_sendable
from spark_cluster.errors import Interrupted, UsageError
from spark_cluster.node.output import elapsed

if TYPE_CHECKING:
    from spark_cluster.cli.serving import RayUpResult
    from spark_cluster.engine.ray_cluster import RayJobs, RayStatus


def _job_id(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    must_be_an_id(value)
    return value


JobId = Annotated[str, {"metavar": "JOB", "callback": _job_id}]


@click.group(cls=DeclaredGroup)
def ray() -> None:
    """Start a Ray cluster over all nodes, without a model, and run jobs on it.

    Ray has the same token, firewall and fabric addresses as under `up`. Jobs are programs for
    training, data or evaluation; they continue when this machine is off.
    """


class RayUpOptions(TypedDict):
    """What is handed on to `Cluster.ray_up`."""

    recipe: str | None
    end_jobs: EndingJobs
    allow: Allowing
    options: Changing


@ray.command()
def up(app: App, **given: Unpack[RayUpOptions]) -> None:
    """Start Ray on all nodes, over the fabric, in the image of a recipe.

    Running it again changes nothing. Jobs that run on it are not ended without --end-jobs.

    Args:
        recipe (NAME): Recipe whose image Ray and the jobs run in, instead of the inventory's.
    """
    app.show(app.cluster.ray_up(**given), _show_up)


@ray.command()
def status(app: App) -> None:
    """Show Ray's nodes and GPUs, the jobs that run, and each node's GPU memory by process."""
    app.show(app.cluster.ray_status(), _show)


@ray.command()
def submit(
    app: App,
    *,
    working_dir: Annotated[Path, click.Path(exists=True, file_okay=False, path_type=Path)] | None,
    env: tuple[str, ...],
    no_wait: bool,
    words: Annotated[tuple[str, ...], {"metavar": "-- COMMAND...", "required": True}],
) -> None:
    """Run a command as a job on the head, show what it prints, and end with its exit status.

    It can use all GPUs through Ray. It keeps running after Ctrl-C, and when this machine is off.

    Args:
        working_dir (FOLDER): Folder of this machine to run the command in; what .gitignore names
            is not sent.
        env (NAME[=VALUE]): A variable of the job, by default with its value here; repeatable. Ray
            shows it to everyone who has the cluster's token.
        no_wait: Print the job's id and leave it running.
    """

    variables = _variables(env)
    if working_dir is not None:
        must_be_sendable(working_dir)
    name = f"job-{secrets.token_hex(4)}"
    with app.cluster.ray_jobs(command="ray submit") as jobs:
        try:
            jobs.submit(words, name=name, working_dir=working_dir, env=variables)
            tell(f"job {name} is submitted")
            job = jobs.job(name) if no_wait else _follow(app, jobs, name)
        except KeyboardInterrupt:
            raise _left(name) from None
    if app.as_json:
        app.print_json({"job": job})
    elif no_wait:
        click.echo(visible(name))
    _leave_as(job)


@ray.command()
def logs(app: App, *, follow: bool, job_id: JobId) -> None:
    """Show what a job has printed, from its beginning.

    Colours are kept on a terminal; any other control sequence is shown escaped (\\x1b...).

    Args:
        follow (-f, --follow): Follow the log to the job's end, and exit with the job's status.
    """
    with app.cluster.ray_jobs(command="ray logs") as jobs:
        job = jobs.job(job_id)
        if follow:
            try:
                job = _follow(app, jobs, job_id)
            except KeyboardInterrupt:
                raise _left(job_id) from None
        else:
            text = jobs.log(job_id)
    if app.as_json:
        log = {} if follow else {"log": text}
        app.print_json({"job": job, **log})
    elif not follow:
        for line in lines_of(text):
            click.echo(coloured(line))
    if follow:
        _leave_as(job)


@ray.command("list")
def list_(app: App) -> None:
    """List the jobs, the newest first."""
    with app.cluster.ray_jobs(command="ray list") as jobs:
        found = jobs.list()
    none = f"there are no jobs; {app.command('ray submit -- COMMAND')} runs one"
    app.show({"jobs": found}, (lambda app, _: _show_jobs(app, found)) if found else none)


@ray.command()
def stop(app: App, *, job_id: JobId) -> None:
    """End a job; Ray asks its processes to end, and kills them after 3 seconds."""
    with app.cluster.ray_jobs(command="ray stop") as jobs:
        changed = jobs.stop(job_id)
    done = "is told to end" if changed else "has ended already"
    app.show({"job": job_id, "changed": changed}, f"job {job_id} {done}")


@ray.command()
def down(app: App, *, options: Changing) -> None:
    """End Ray on all nodes, with its jobs, and verify that the memory is free again."""
    app.show(app.cluster.ray_down(options=options), show_stopped)


@ray.command()
def dashboard(app: App, *, port: Port | None, with_token: bool, open_it: bool) -> None:
    """Reach Ray's own page at a port of this machine, over SSH, until Ctrl-C.

    The page asks once for the cluster's token. Anyone who has it can run programs on the nodes.

    Args:
        port (PORT): Port of this machine (default: one that is free).
        with_token (--token): Print the token that the page asks for.
        open_it (--open): Open the page in the browser.
    """
    from spark_cluster.engine.client_target import TunnelEvent, keep_open
    from spark_cluster.engine.ray_cluster import running_port, token_of

    head, dialer = app.inventory.head, app.cluster.dialer
    with app.cluster.play("ray dashboard", [head], change=False, gather_facts=False) as run:
        play = run.open()
        there = running_port(play)
        token = token_of(play, there)
    opened = threading.Event()

    def report(event: TunnelEvent) -> None:
        if event.event != "open":
            tell(str(event))
        elif not opened.is_set():
            opened.set()
            _tell(app, event.url, token if with_token else None)
            if open_it:
                webbrowser.open(event.url)

    with contextlib.suppress(KeyboardInterrupt), ended_by_signals():
        if head.is_local:
            with dialer.forward(head, there) as found:
                report(TunnelEvent("open", head.name, url=f"http://{LOOPBACK}:{found}"))
                threading.Event().wait()
        url = f"http://{LOOPBACK}:{there}"
        for event in keep_open(dialer.target(head), lambda _: url, port or 0):
            report(event)


def _tell(app: App, url: str, token: str | None) -> None:
    """Say where Ray's page is, and its token where that is asked for."""
    given = {} if token is None else {"token": token}
    asks = f"token: {token}" if given else "it asks for the cluster's token, which --token prints"
    app.show({"url": url, **given}, f"{url}\n{asks}\nCtrl-C ends it.")


def _variables(given: Iterable[str]) -> dict[str, str]:
    """Return the variables of --env.

    Raises:
        UsageError: one has no name that a shell knows, or no value here.
    """
    found = {}
    for text in given:
        name, separator, value = text.partition("=")
        named = re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name) is not None
        if not named or (not separator and name not in os.environ):
            what = f"{name} is not set here" if named else f"found {text!r}"
            raise UsageError(f"--env: {what}, expected NAME=VALUE or a variable of this machine")
        found[name] = value if separator else os.environ[name]
    return found


def _follow(app: App, jobs: RayJobs, name: str) -> Job:
    """Print a job's log to its end, and return the job."""
    printer = LinePrinter(err=app.as_json)
    try:
        for part in jobs.follow(name):
            printer.add(part)
    finally:
        printer.end()
    return jobs.job(name)


def _left(name: str) -> Interrupted:
    return Interrupted(
        f"interrupted; job {name} goes on",
        hint=f"spark-cluster ray logs -f {name} attaches again, spark-cluster ray stop {name} ends "
        "it",
    )


def _leave_as(job: Job) -> None:
    """End with the exit status of a job that has ended, and say why where it is not 0."""
    if not job.has_ended or job.exit_status == 0:
        return
    tell(f"job {job.id} {job.status.lower()}: {job.why}")
    sys.exit(job.exit_status)


def _show_up(app: App, found: RayUpResult) -> None:
    app.show_recap()
    if found.cluster is not None:
        _show(app, found.cluster)


def _show(app: App, found: RayStatus) -> None:
    """Print the state, the nodes, the jobs that run, and the GPU memory."""
    colours = {"running": "green", "stopped": "dim", "degraded": "yellow", "failed": "red"}
    parts = [f"Ray {found.version}" if found.version else "Ray"]
    parts += [f"recipe {found.recipe}"] if found.recipe else []
    parts += ["under a model"] if found.model else []
    state = painted(found.state, f"bold {colours[found.state]}")
    app.console.say("{}  [dim]{}[/]", state, ", ".join(parts))
    if found.state != "stopped":
        nodes = plain_table("node", "address", "Ray", "GPUs", right=("GPUs",))
        for node in found.nodes:
            alive = "alive" if node.alive else "missing"
            nodes.add_row(node.name, node.address, alive, f"{node.gpus:g}")
        app.console.print(nodes)
        if found.jobs:
            app.console.print()
            _show_jobs(app, found.jobs)
        else:
            app.console.print(painted("no job is running", "dim"))
    app.console.print()
    app.console.print(vram_table([node.vram for node in found.nodes]))
    if found.state == "stopped":
        app.console.print(f"{app.command('ray up')} starts one")


def _show_jobs(app: App, jobs: Iterable[Job]) -> None:
    colours = {"SUCCEEDED": "green", "FAILED": "red", "RUNNING": "cyan"}
    short = ("state", "started", "took", "exit")
    result = plain_table("job", *short, "command", whole=short, right=short[2:])
    for job in jobs:
        code = "" if job.exit_code is None else str(job.exit_code)
        state = painted(job.status.lower(), colours.get(job.status, "yellow"))
        times = ("", "") if job.started is None else _times(job.started, job.ended or time.time())
        result.add_row(job.id, state, *times, code, job.entrypoint[:200])
    app.console.print(result)


def _times(started: float, ended: float) -> tuple[str, str]:
    """Return the local time at which a job started, and how long it took until it ended."""
    at = time.strftime("%d %b %H:%M", time.localtime(started))
    return at, elapsed(ended - started)
