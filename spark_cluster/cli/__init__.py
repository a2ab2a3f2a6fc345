"""The command line, and the Python API that it calls.

The API is `Cluster` (`api.py`), on an open inventory (`opened.py`), with runs (`run.py`) and
results (`results.py`, `serving.py`): it prints nothing, ends no process, knows no options. A module
of commands parses (`options.py`), calls it and shows the result (`console.py`, `app.py`). To add a
command, write its function, with its options in the docstring, and name it in COMMANDS.
Nothing but `__main__` imports this room, and what --help imports stays light.
"""

# ruff: noqa: E402  (the time is noted before anything else is imported)
from __future__ import annotations

import time

STARTED = time.monotonic()
"""Seconds on the monotonic clock. The elapsed time of a run counts from here, so that it is what
the user waits for: most of a short run is spent importing. What comes before is Python's own start
(about 15 ms), which no portable call tells."""

# isort: split
import contextlib
import errno
import gc
import io
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from spark_cluster import __version__
from spark_cluster.cli.app import App, exit_status
from spark_cluster.cli.display import show_error
from spark_cluster.cli.options import DeclaredGroup
from spark_cluster.errors import INSTALL_LAB, SparkClusterError, UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

COMMANDS = {
    "setup": ("setup", "Go from nothing to a verified endpoint, step by step."),
    "init": ("first_steps", "Write a commented inventory for your nodes."),
    "trust": ("first_steps", "Show the nodes' host keys and accept them."),
    "ping": ("nodes", "Connect to every node and measure the time."),
    "facts": ("nodes", "Show the facts of the nodes: system, GPU, memory, link."),
    "provision": ("nodes", "Make fresh or drifted Sparks ready to serve."),
    "doctor": ("doctor", "Find what is wrong with the nodes, why, and what to do."),
    "recipes": ("recipes", "List, search, show, import, save and update recipes."),
    "plan": ("plan", "Show what fits and how fast it will be, before any download."),
    "lint": ("lint", "Find known issues in a recipe or a command line, and fix them."),
    "predict": (
        "predict",
        "Predict speed and KV cache from a model's shape, or calibrate with your runs.",
    ),
    "images": ("stored", "Look after the container images on the nodes: list, prune."),
    "models": ("stored", "Look after the models on the nodes: list, verify, pin, prune."),
    "up": ("up", "Bring up a verified vLLM endpoint from any state."),
    "swap": ("up", "Serve another recipe; go back to the old one if it fails."),
    "supervise": ("up", "Restart a dead engine from the head itself, without the laptop."),
    "tune": ("caches", "Tune the engine's kernels for a recipe on this GPU, with its own tuner."),
    "down": ("served", "Stop serving, and verify that the memory is free again."),
    "verify": ("served", "Verify the answers of the running server, in depth."),
    "status": ("served", "Show what is served, and what is wrong."),
    "tunnel": ("clients", "Reach the endpoint at a port of this machine, over SSH."),
    "clients": (
        "clients",
        "Print how curl, Python, Open WebUI, opencode and others use the endpoint.",
    ),
    "keys": ("clients", "Add, list and revoke API keys of the endpoint by name."),
    "ray": ("ray", "Run jobs on a Ray cluster of all nodes, without a model."),
    "logs": ("doctor", "Show the logs of the serving containers."),
    "explain": ("lint", "Explain logs: the cause first, its consequences last."),
    "bench": ("bench", "Measure suites of loads, compare runs, and report."),
    "caches": ("caches", "List and prune the engines' compiled code and kernels."),
    "vram": ("served", "Show each node's GPU memory by process."),
    "top": ("top", "Show the nodes live: GPU, clocks, power, memory, link, tokens."),
    "dashboard": ("top", "Show the nodes in a browser: memory, link, engine, runs, findings."),
    "exec": ("nodes", "Run a command on the nodes."),
    "playbook": ("nodes", "Run a playbook."),
    "history": ("history", "Show what runs changed on the nodes."),
    "revert": ("history", "Revert what a run changed."),
    "lab": ("", "Run two simulated Sparks on this machine."),
    "version": ("doctor", "Show versions and files in use, for a bug report."),
    "completion": ("first_steps", "Print the completion script for bash, zsh or fish."),
}
"""In the order in which a newcomer meets them: the module of each, which has a function of that
name (`exec_`, as exec is Python's own), and its line of --help, which imports nothing."""

ELSEWHERE = ("lab",)
"""Commands of distributions of their own, which bring them by an entry point: each its name."""

ENTRY_POINTS = "spark_cluster.commands"


class AllCommands(DeclaredGroup):
    """All commands, of which --help imports none."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            import difflib

            close = difflib.get_close_matches(args[0], COMMANDS, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            ctx.fail(f"There is no command {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; what the hint of its error says can be pasted as it is."""
        try:
            return super().invoke(ctx)
        except SparkClusterError as error:
            if isinstance(ctx.obj, App):
                error.hint = ctx.obj.to_paste(error.hint)
            raise

    def load(self, name: str) -> click.Command:
        """Import a command; `lab` is of a distribution of its own, and found by its entry point.

        Raises:
            UsageError: that is not installed.
        """
        if name not in ELSEWHERE:
            return super().load(name)
        from importlib.metadata import entry_points

        for point in entry_points(group=ENTRY_POINTS, name=name):
            found: click.Command = point.load()
            return found
        raise UsageError(f"the command {name!r} is not installed", hint=INSTALL_LAB)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Complete a command's name without importing the commands."""
        from click.shell_completion import CompletionItem

        commands = [
            CompletionItem(name, help=text)
            for name, (_, text) in COMMANDS.items()
            if name.startswith(incomplete)
        ]
        return [*commands, *click.Command.shell_complete(self, ctx, incomplete)]


@click.group(
    cls=AllCommands,
    later={
        name: f"{module}:{'exec_' if name == 'exec' else name}"
        for name, (module, _) in COMMANDS.items()
    },
    about={name: text for name, (_, text) in COMMANDS.items()},
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, prog_name="spark-cluster")
def cli(
    ctx: click.Context,
    *,
    inventory: str | None,
    project: str | None,
    limit: str = "all",
    as_json: bool,
    verbose: bool,
) -> None:
    """Bring one or two NVIDIA DGX Sparks from any state to a verified vLLM endpoint, over SSH,
    with nothing installed on them beforehand.

    Exit status: 0 fine, 1 failed, 2 usage or invalid file, 3 unreachable, 4 refused by the plan,
    5 verification failed, 130 interrupted.

    Args:
        inventory (-i, --inventory FILE): Inventory: a file, or the name of a shipped one.
        project (DIR): Project folder; by default the current one.
        limit (-l, --limit PATTERN): Only these nodes or groups, such as spark*,!spark2.
        as_json (--json): Print one JSON document on standard output.
        verbose (-v, --verbose): Also show what needed no change.
    """
    from spark_cluster.cli.api import Cluster
    from spark_cluster.cli.opened import watching
    from spark_cluster.config.extension import using

    caller = ctx.obj if isinstance(ctx.obj, App) else None  # `setup` runs it, in its own time
    started = STARTED if caller is None else time.monotonic()
    cluster = Cluster(inventory, project=project, limit=limit, started=started)
    if caller is not None:
        cluster.prompts = caller.cluster.prompts
    app = App(cluster, as_json=as_json, verbose=verbose, started=started)
    ctx.obj = app
    ctx.with_resource(watching(app.watch))
    ctx.with_resource(using(lambda: cluster.project.extensions))


def main() -> NoReturn:
    """The entry point: runs a command, and turns errors into words and an exit status."""
    gc.disable()  # importing makes nothing that a collection could free; a run enables it again
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")  # looking for them takes 10 ms
    as_json = _wants_json(sys.argv[1:])
    sys.stdout = sys.stdout or open(os.devnull, "w")  # it is closed: `>&-`  # noqa: SIM115, PTH123
    for stream in (sys.stdout, sys.stderr):  # what a terminal's encoding lacks is no traceback
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        status = _run(as_json=as_json)
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has seen enough
        status = 128 + signal.SIGPIPE
        _drop_output()
    except OSError as error:
        status = 1
        where = f"{error.filename}: " if error.filename else ""
        is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        hint = "free space on this machine's disk, then run it again; nodes are left as they are"
        show_error(where + (error.strerror or str(error)), hint if is_full else "")
        _drop_output()
    sys.exit(status)


def _run(*, as_json: bool) -> int:
    """Run one command and print its errors; return the exit status.

    Raises:
        OSError: of the laptop: its disk is full, no one reads the output.
    """

    def run() -> Any:
        try:
            return cli.main(standalone_mode=False)
        finally:
            signal.signal(
                signal.SIGINT, signal.SIG_IGN
            )  # it is over; a late Ctrl-C changes nothing

    try:
        return exit_status(run, as_json=as_json)
    except (click.Abort, KeyboardInterrupt):
        click.echo("aborted", err=True)
        return 130


def _drop_output() -> None:
    """Drop the buffered output that cannot be written: the interpreter must not try it at exit."""
    with contextlib.suppress(OSError, ValueError):  # a stream of tests has no descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _wants_json(words: list[str]) -> bool:
    """Return whether --json is meant for us: the words of the command that `exec` runs are not."""
    ours: list[str] = []
    for word in words:
        after_option = bool(ours) and ours[-1] in ("--timeout", "--limit", "-l")
        if word == "--" or ("exec" in ours and not word.startswith("-") and not after_option):
            break
        ours.append(word)
    return "--json" in ours
