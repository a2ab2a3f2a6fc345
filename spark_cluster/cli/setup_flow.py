"""The steps of `setup`: each runs commands as a user could type them, in this process."""

from __future__ import annotations

import contextlib
import io
import json
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import click
from rich.padding import Padding

from spark_cluster.cli import process_start
from spark_cluster.cli.app import App
from spark_cluster.cli.console import mark, painted, styled
from spark_cluster.cli.terminal import Console
from spark_cluster.cli.visible import show_error, visible
from spark_cluster.errors import Interrupted, SparkClusterError, UsageError

if TYPE_CHECKING:
    from spark_cluster.loader.new_inventory import Answers

State = Literal["done", "nothing to do", "declined", "failed", "would run"]

STEPS = ("nodes", "trust", "login", "provision", "model", "up")

T = TypeVar("T")


@dataclass
class Step:
    """A step of `setup`.

    Attributes:
        state: how it ended.
        commands: what it ran, or would run, as a user could type it.
    """

    name: str
    state: State = "done"
    commands: list[str] = field(default_factory=list)


class Stopped(Exception):
    """A step did not succeed, so that those after it are not begun.

    Args:
        again: the command that goes on with it.
    """

    def __init__(self, status: int, again: str) -> None:
        super().__init__(again)
        self.status = status
        self.again = again


@dataclass
class Flow:
    """A run of `setup`.

    Args:
        root: the program's commands.
        app: the global options.

    Attributes:
        count: nodes that there are.
        planned: in check mode, what the inventory would be written from.
    """

    root: click.Command
    app: App
    ask: Asker
    steps: list[Step] = field(default_factory=list)
    count: int = 1
    planned: Answers | None = None

    @property
    def check(self) -> bool:
        """True when nothing is to be done."""
        return self.ask.check

    @contextlib.contextmanager
    def step(self, name: str, title: str) -> Iterator[Step]:
        """Run one step under its title; what fails in it stops the run.

        Raises:
            Stopped: it failed, or was interrupted.
        """
        now = Step(name)
        self.steps.append(now)
        place = f"{STEPS.index(name) + 1}/{len(STEPS)}"
        self.say(styled("\n[bold]{}  {}[/]", place, title))
        try:
            yield now
        except Stopped:
            now.state = "failed"
            raise
        except (KeyboardInterrupt, click.Abort):
            now.state = "failed"
            click.echo("", err=True)  # the question's line has no end
            raise Stopped(Interrupted.exit_code, self.line("setup")) from None
        except SparkClusterError as error:
            now.state = "failed"
            show_error(f"{error.where}: {error.message}" if error.where else error.message,
                       error.hint)  # fmt: skip
            raise Stopped(error.exit_code, self.line("setup")) from None

    def say(self, text: Any = "") -> None:
        """Print for people: with --json on standard error."""

        Console(stderr=self.app.as_json).print(text, soft_wrap=True)

    def text(self, text: str, *, indent: int = 0) -> None:
        """Print further words, folded between words."""

        Console(stderr=self.app.as_json).print(Padding(painted(text, "dim"), (0, 0, 0, indent)))

    def note(self, verdict: str, text: str) -> None:
        """Print a line with a sign."""
        self.say(styled("{} {}", mark(verdict), text))

    def words(self, *words: str) -> list[str]:
        """Return a command with the global options of this run."""
        opened = self.app.cluster
        options = {"-i": opened.named, "--project": opened.named_project}
        given = [word for name, value in options.items() if value for word in (name, str(value))]
        return [*given, *(["-l", opened.limit] if opened.limit != "all" else []), *words]

    def line(self, *words: str) -> str:
        """Return a command as a user types it."""
        return shlex.join(["spark-cluster", *self.words(*words)])

    def run(self, step: Step, *words: str, quiet: bool = False) -> None:
        """Run a command in this process, in its own display.

        Args:
            quiet: leave out what it prints on standard output, such as what to do next.

        Raises:
            Stopped: it did not succeed.
        """
        line = self.line(*words)
        step.commands.append(line)
        self.say(styled("[bold cyan]$ {}[/]", line))
        if self.check:
            step.state = "would run"
            return
        status = self._status(self.words(*words), quiet=quiet)
        if status:
            raise Stopped(status, line)

    def _status(self, words: Sequence[str], *, quiet: bool) -> int:
        """Run it as the program does, and print its error; return the exit status."""
        process_start.STARTED = time.monotonic()  # what a run shows is its own time
        out = io.StringIO() if quiet else sys.stderr if self.app.as_json else sys.stdout
        try:
            with contextlib.redirect_stdout(out):
                return int(self._main(words) or 0)
        except SystemExit as ended:
            return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except click.ClickException as error:
            error.show()
            return error.exit_code
        except (click.Abort, KeyboardInterrupt):
            return Interrupted.exit_code
        except SparkClusterError as error:
            where = f"{error.where}: " if error.where else ""
            show_error(where + error.message, error.hint)
            return error.exit_code

    def _main(self, words: Sequence[str]) -> Any:
        """Run a command with the answers that this run has been given."""
        return self.root.main(list(words), "spark-cluster", standalone_mode=False, obj=self.app)

    def document(self, *words: str) -> dict[str, Any] | None:
        """Return what a command that changes nothing prints with --json; None when it fails."""
        out = io.StringIO()
        try:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
                self._main([*self.words(*words), "--json"])
            found = json.loads(out.getvalue())
        except (SparkClusterError, click.ClickException, SystemExit, ValueError):
            return None
        return found if isinstance(found, dict) else None

    def offer(self, step: Step, question: str, *words: str) -> None:
        """Run a command where the user wants it now.

        Raises:
            Stopped: it did not succeed.
        """
        if self.ask.consent(question):
            self.run(step, *words)
            return
        step.state = "declined"
        line = self.line(*words)
        step.commands.append(line)
        self.say(styled("[dim]not now; later:[/] {}", line))

    def nothing_to_do(self, step: Step, text: str) -> None:
        """Note that a step was done before."""
        step.state = "nothing to do"
        self.note("ok", text)

    def show_end(self) -> None:
        """Print what is left to do, when no step has failed."""
        if self.check:
            return
        left = [step for step in self.steps if step.state == "declined"]
        if left:
            names = ", ".join(step.name for step in left)
            self.say(styled("\n{} not done: {}. Go on with:", mark("warn"), names))
            self.say(styled("  [bold]{}[/]", self.line("setup")))
            return
        self.say(styled("\n{} it serves. What now:", mark("ok")))
        for words, meaning in (
            ("clients", "how curl, Python and others use it"),
            ("tunnel", "reach it at a port of this machine"),
            ("status", "what serves, and what is wrong"),
        ):
            self.say(styled("  {:<24}  [dim]{}[/]", self.line(words), meaning))

    def show_way_on(self, stopped: Stopped) -> None:
        """Print which command goes on from here."""
        name = self.steps[-1].name
        self.say(styled("\n{} step {} is not done. Go on with:", mark("warn"), name))
        self.say(styled("  [bold]{}[/]", stopped.again))
        again = self.line("setup")
        if stopped.again != again:
            self.say(styled("  [bold]{}[/]  {}", again,
                            painted("goes on after what is done", "dim")))  # fmt: skip


@dataclass(frozen=True)
class Asker:
    """Asks; with --yes every consent is given, and every choice the first one.

    Args:
        yes: ask nothing.
        check: ask nothing either: nothing is done.
    """

    yes: bool
    check: bool = False

    @property
    def silent(self) -> bool:
        """True when nothing is asked."""
        return self.yes or self.check

    def must_be_able(self, would_ask: Sequence[str]) -> None:
        """Refuse to begin where questions would come that no one can answer.

        Raises:
            UsageError: there is no terminal, and no --yes; with what would be asked.
        """
        if self.silent or (sys.stdin.isatty() and sys.stderr.isatty()):
            return
        raise UsageError(
            "setup asks questions, and there is no terminal to ask on:\n  "
            + "\n  ".join(would_ask),
            hint="give the answers as options, and --yes for the consent to every step",
        )

    def consent(self, question: str, *, default: bool = True) -> bool:
        """Ask for a yes or no."""
        return self.silent or click.confirm(visible(question), default=default, err=True)

    def offer(self, question: str) -> bool:
        """Ask whether to do what only a person may decide: no unless someone says yes."""
        return not self.silent and click.confirm(visible(question), default=True, err=True)

    def text(self, question: str, default: str | None = None) -> str:
        """Ask for a word."""
        found: str = click.prompt(visible(question), default=default, err=True)
        return found.strip()

    def until_valid(self, question: str, default: str | None, read: Callable[[str], T]) -> T:
        """Ask until the answer can be used; `read` raises UsageError with what was expected."""
        while True:
            try:
                return read(self.text(question, default))
            except UsageError as error:
                click.echo(visible(f"  {error.message}"), err=True)

    def choice(self, question: str, count: int, default: int = 1) -> int:
        """Ask for one of a numbered list; 0 is the first."""
        if self.silent:
            return default - 1
        found: int = click.prompt(
            visible(question), default=default, type=click.IntRange(1, count), err=True
        )
        return found - 1
