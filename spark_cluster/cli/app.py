"""The parts that all commands share: global options, the cluster, a run as it is shown, JSON."""

from __future__ import annotations

import contextlib
import gc
import json
import re
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from spark_cluster.cli.changes import summary
from spark_cluster.cli.console import styled
from spark_cluster.cli.display import Display, recap, show_diff, show_error, show_failure
from spark_cluster.errors import SparkClusterError, worst
from spark_cluster.runner.events import Sink

if TYPE_CHECKING:
    from spark_cluster.cli.api import Cluster
    from spark_cluster.cli.run import Run
    from spark_cluster.cli.terminal import Console, RenderableType
    from spark_cluster.config.inventory import Inventory, InventoryNode
    from spark_cluster.config.project import Project


# `--step`: a person decides on each change before it is made.

ANSWERS = {"y": "yes", "n": "no", "a": "all", "s": "stop"}


class Stepper:
    """Asks on the terminal, one question at a time.

    A run may come to the same change twice (`provision` applies its roles again with new facts):
    a no holds until the end of the run, also when `all` is said later.

    Args:
        display: is quiet while a question stands.
        read: reads a line.
    """

    def __init__(self, display: Display, read: Callable[[str], str] = input) -> None:
        self.display = display
        self.read = read
        self._lock = threading.Lock()
        self._decided = ""
        self._refused: set[tuple[str, str]] = set()

    def ask(self, node: str, change: dict[str, Any]) -> str:
        """`yes`, `no`, `all` (ask no more) or `stop`, for one change of one node.

        Args:
            change: the resource's `id`, its `changes`, perhaps a `diff`.
        """
        with self._lock:
            if (node, change["id"]) in self._refused:
                return "no"
            if not self._decided:
                with self.display.quiet():
                    self._show(node, change)
                    answer = self._answer()
                if answer == "no":
                    self._refused.add((node, change["id"]))
                if answer not in ("all", "stop"):
                    return answer
                self._decided = answer
            # The agent asks no more after `all`; it must where something was refused.
            refused_there = any(name == node for name, _ in self._refused)
            return "yes" if self._decided == "all" and refused_there else self._decided

    def _show(self, node: str, change: dict[str, Any]) -> None:
        console = self.display.console
        what = change.get("reason") or summary(change["id"], change["changes"])
        console.say("\n[bold]{}[/]  {}  [yellow]{}[/]", node, change["id"], what)
        if change.get("diff"):
            show_diff(console, change["diff"], 4)

    def _answer(self) -> str:
        while True:
            self.display.console.print(
                "  change it? ",
                styled("[bold]y[/]es, [bold]n[/]o, [bold]a[/]ll from here, [bold]s[/]top: "),
                sep="",
                end="",
            )
            try:
                typed = self.read("").strip().lower()
            except EOFError:
                return "stop"
            if typed[:1] in ANSWERS:
                return ANSWERS[typed[:1]]


F = TypeVar("F", bound=Callable[..., Any])
R = TypeVar("R")

ABOUT_NODES = re.compile(
    r"\bspark-cluster(?= (?:bench|caches|clients|dashboard|doctor|down|exec|facts|history|images"
    r"|keys|logs|models|ping|plan|playbook|provision|ray|recipes|revert|status|supervise|swap|top"
    r"|trust|tune|tunnel|up|verify|vram)\b)"
)
"""`spark-cluster` in a text where a command follows that reads an inventory or a project."""

WOULD_CHANGE = 10
"""Exit status of `--check --exit-code` when something would change."""


@dataclass
class App:
    """The program: what commands work on, and how they show it.

    Args:
        cluster: does what the commands do; it has the global options that are about nodes.
        as_json: one JSON document on standard output and nothing else there.
        verbose: also show what was fine already.
        started: when the command's time began, seconds on the monotonic clock.

    Attributes:
        exit_code: a check that would change something ends with WOULD_CHANGE.
    """

    cluster: Cluster
    as_json: bool = field(default=False, kw_only=True)
    verbose: bool = field(default=False, kw_only=True)
    started: float = field(default_factory=time.monotonic, kw_only=True)
    last_run: Run | None = field(default=None, init=False)
    exit_code: bool = field(default=False, init=False)

    @property
    def project(self) -> Project:
        """The user's project folder and what is shipped."""
        return self.cluster.project

    @property
    def own_recipe(self) -> str | None:
        """The recipe that the inventory names; None where it names none, or is missing."""
        return None if self.cluster.inventory_is_missing else self.inventory.serve.recipe or None

    @property
    def inventory(self) -> Inventory:
        """The inventory, read and checked."""
        return self.cluster.inventory

    @property
    def nodes(self) -> list[InventoryNode]:
        """The nodes that --limit selects."""
        return self.cluster.nodes

    @property
    def given(self) -> list[str]:
        """The words of the global options that say which nodes it is about."""
        limit = self.cluster.limit
        return [*self._files, *(["-l", limit] if limit != "all" else [])]

    @property
    def _files(self) -> list[str]:
        options = {"-i": self.cluster.named, "--project": self.cluster.named_project}
        return [word for name, value in options.items() if value for word in (name, str(value))]

    def command(self, words: str) -> str:
        """Return a command about the same nodes, to be copied."""
        return f"{shlex.join(['spark-cluster', *self.given])} {words}"

    def to_paste(self, text: str) -> str:
        """Return text whose commands about nodes name this command's inventory and project.

        --limit is left out: what a hint says is about all nodes, or names its own.
        """
        whole = shlex.join(["spark-cluster", *self._files])
        return ABOUT_NODES.sub(lambda _: whole, text)

    def tell_lost(self, lost: Mapping[str, SparkClusterError]) -> int:
        """Tell on standard error which nodes did not answer; return the exit status."""
        for name, error in lost.items():
            show_error(error.message, self.to_paste(error.hint), node=name)
        return worst(lost.values())

    def import_meanwhile(self, *modules: str) -> None:
        """Import what shows the answers while the nodes are asked; nothing for --json.

        Args:
            modules: besides those of every table.
        """

        from spark_cluster.runner.parallel import start

        if not self.as_json:
            names = ("rich.table", "spark_cluster.cli.terminal", *modules)
            start(lambda: [import_module(name) for name in names])

    @cached_property
    def run_id(self) -> str:
        """The id of the run that this command makes."""
        from spark_cluster.cli.opened import new_run

        return new_run()

    @cached_property
    def console(self) -> Console:
        """The console that people read: standard output, or standard error with --json."""
        from spark_cluster.cli.terminal import Console

        return Console(stderr=self.as_json)

    def print_json(self, document: Any) -> None:
        """The one JSON document."""
        from spark_cluster.config.schema import as_json

        click.echo(json.dumps(as_json(document), indent=2, default=str))

    def show(self, found: R, show: str | Callable[[App, R], object]) -> None:
        """Print what a command has found: its JSON document, or for people `show` or what it
        prints."""
        if self.as_json:
            self.print_json(found)
        elif isinstance(show, str):
            self.console.print(show, end="\n" if show else "")
        else:
            show(self, found)

    def follow(
        self, found: Iterable[R], told: Callable[[R], Any], picture: Callable[[R], RenderableType]
    ) -> None:
        """Show what comes, one after another: on a terminal as a picture that is drawn again.

        Args:
            told: elsewhere printed each time; with --json a JSON line. None prints nothing.
        """
        if self.as_json or not self.console.is_terminal:
            for one in filter(None, map(told, found)):
                click.echo(json.dumps(one)) if self.as_json else self.console.print(one)
            return
        from rich.live import Live

        with Live(console=self.console, auto_refresh=False) as live:
            for one in found:
                live.update(picture(one), refresh=True)

    def show_run(
        self, run: Run, told: Any, found: R | None, show: Callable[[App, R], object]
    ) -> None:
        """Print what a run has found: in its JSON document, or for people below its recap.

        Args:
            told: keys of the document besides those of every run; None where there are none.
            found: is shown to people, unless it is None.
        """
        if self.as_json:
            self.print_json(run.document(told))
            return
        self.show_recap()
        if found is not None:
            show(self, found)

    def watch(self, run: Run) -> Sink:
        """Return what shows a run of this command; with --step it also asks.

        The process is the run's from here on: garbage is collected again, and SIGTERM ends it as
        Ctrl-C does.
        """
        self.last_run = run
        if not run.change:  # its result is shown right after; a run that changes shows its events
            self.import_meanwhile()
        gc.freeze()
        gc.enable()
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        display = Display(
            lambda: self.console, verbose=self.verbose, titled=run.change, to_paste=self.to_paste
        )
        self.cluster.prompts.around = display.quiet
        if run.options.step:
            run.options.ask = Stepper(display).ask
        if not self.as_json and sys.stdin.isatty() and sys.stdout.isatty():
            run.options.consent = display.confirm
        return display

    def show_recap(self) -> None:
        """Print the closing table of the last run, unless the output is JSON."""
        if self.last_run is not None and not self.as_json:
            run = self.last_run
            recap(self.console, run.recap, run.seconds, check=run.check)


def _ends_already(_signal: int, _frame: object) -> None:
    """Take a further signal. With SIG_IGN in its place, Python would print of one that came
    together with the first that it was "ignored due to race condition"."""


@contextlib.contextmanager
def ended_by_signals(*more: signal.Signals) -> Iterator[None]:
    """Have SIGTERM and SIGHUP raise KeyboardInterrupt, once: what is open is then closed.

    Args:
        more: signals that do so, too; with SIGINT, a second Ctrl-C does not cut the closing.
    """

    def end(_number: int, _frame: FrameType | None) -> NoReturn:
        for number in chosen:
            signal.signal(number, _ends_already)
        raise KeyboardInterrupt

    # nohup has SIGHUP ignored
    ending = (signal.SIGTERM, signal.SIGHUP, *more)
    unheard = (signal.SIG_IGN, _ends_already)
    chosen = [number for number in ending if signal.getsignal(number) not in unheard]
    before = {number: signal.signal(number, end) for number in chosen}
    try:
        yield
    finally:
        # Once it ends, it stays so: the interpreter would take back a handler in Python at exit.
        for number, handler in before.items():
            listens = signal.getsignal(number) is end
            signal.signal(number, handler if listens else signal.SIG_IGN)


def exit_status(run: Callable[[], Any], *, as_json: bool = False) -> int:
    """Run a command and print the error that it ends with; return the exit status.

    Args:
        as_json: also print the error as a JSON document.

    Raises:
        click.Abort, KeyboardInterrupt: someone has ended it.
        OSError: of the laptop: its disk is full, no one reads the output.
    """
    try:
        return int(run() or 0)  # what a command gives to `ctx.exit` comes back as the result
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except SystemExit as ended:  # of a command; of click where no one reads its output
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except click.ClickException as error:
        message, ctx = error.format_message(), getattr(error, "ctx", None)
        hint = f"`{ctx.command_path} --help` shows what there is" if ctx else ""
        if ctx and "extra arg" in message and any("--recipe" in p.opts for p in ctx.command.params):
            hint = f"a recipe is given by --recipe NAME; {hint}"
        if as_json:
            _print_error({"message": message, "where": "", "hint": hint})
        if message.startswith("Usage: "):  # a group without a command: click gives its help
            error.show()
            return error.exit_code
        show_error(message, hint)
        return error.exit_code
    except SparkClusterError as error:
        if as_json:
            _print_error(error.to_dict())
        show_failure(error)
        return error.exit_code


def _print_error(error: dict[str, str]) -> None:
    click.echo(json.dumps({"ok": False, "error": error}, indent=2))


def leave_with(run: Run | None, *, exit_code: bool) -> None:
    """Status 10 when the user asked for it and something would change."""
    if exit_code and run is not None and run.check and run.recap.changed:
        sys.exit(WOULD_CHANGE)
