"""What all commands share: the project, the inventory, a run with its events, output as JSON."""

from __future__ import annotations

import contextlib
import gc
import json
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from spark_cluster.errors import Interrupted, SparkClusterError, UsageError

if TYPE_CHECKING:
    from spark_cluster.allowances import Allowances
    from spark_cluster.cli.console import Console
    from spark_cluster.engine.options import Options
    from spark_cluster.engine.play import Play
    from spark_cluster.inventory import Inventory, Node
    from spark_cluster.project import Project

F = TypeVar("F", bound=Callable[..., Any])

WOULD_CHANGE = 10
"""Exit status of `--check --exit-code` when something would change."""


@dataclass
class App:
    """The global options, and what they lead to.

    Args:
        inventory_name: file or name given with --inventory.
        project_folder: given with --project.
        limit: pattern given with --limit.
        as_json: one JSON document on standard output and nothing else there.
        verbose: also show what was fine already.
    """

    inventory_name: str | None = None
    project_folder: str | None = None
    limit: str = "all"
    as_json: bool = field(default=False, kw_only=True)
    verbose: bool = field(default=False, kw_only=True)

    @cached_property
    def project(self) -> Project:
        """The user's project folder and what is shipped."""
        from spark_cluster.project import Project

        return Project(Path(self.project_folder or ".").resolve())

    @property
    def inventory_is_missing(self) -> bool:
        """Nobody named one and the project has none, which some commands can do without."""
        from spark_cluster.inventory import DEFAULT

        return self.inventory_name is None and not (self.project.folder / DEFAULT).exists()

    @cached_property
    def inventory(self) -> Inventory:
        """The inventory, read and checked."""
        from spark_cluster.inventory import load_inventory

        return load_inventory(self.inventory_name, self.project)

    def allowances(self, named: Allowances) -> Allowances:
        """What recipes are allowed: by the inventory, and by the options of the command."""
        from spark_cluster.allowances import Allowances

        if self.inventory_is_missing:
            return named
        serve = self.inventory.serve
        known = Allowances(
            tuple(serve.allow_files), tuple(serve.allow_env), tuple(serve.allow_mounts)
        )
        return known + named

    @property
    def nodes(self) -> list[Node]:
        """The nodes that --limit selects."""
        return self.inventory.select(self.limit)

    @cached_property
    def console(self) -> Console:
        """Where people look: standard output, or standard error when that carries JSON."""
        from spark_cluster.cli.console import Console

        return Console(stderr=self.as_json)

    def print_json(self, document: Any) -> None:
        """The one JSON document."""
        click.echo(json.dumps(document, indent=2, default=str))

    @contextlib.contextmanager
    def play(
        self, command: str, nodes: list[Node], options: Options, *, change: bool = True
    ) -> Iterator[Run]:
        """A run over nodes: connected, shown, recorded, ended in order whatever happens.

        Raises:
            SparkClusterError: no node could be reached, or what the body raises.
        """
        run = Run(self, command, nodes, options, change=change)
        try:
            yield run
        except KeyboardInterrupt:
            interrupted = run.interrupted()
            run.finish(error=str(interrupted))
            raise interrupted from None
        except SparkClusterError as error:
            run.finish(error=str(error))
            raise
        else:
            run.finish()
        finally:
            run.close()


class Run:
    """One run as the command line sees it: a play, its recap, its end."""

    def __init__(
        self, app: App, command: str, nodes: list[Node], options: Options, *, change: bool
    ) -> None:
        from spark_cluster.engine.connections import Connections
        from spark_cluster.engine.events import Bus, Note, Recap
        from spark_cluster.engine.record import Record, new_run

        self.app = app
        self.command = command
        self.check = options.check
        self._selection = options.selection
        self.begun = False
        self.recap = Recap()
        self.started = time.monotonic()
        self.id = new_run()
        self.bus = Bus(self.recap)
        if change:
            record = Record(self.id, on_error=lambda why: self.bus.emit(Note(why, "warning")))
            self.bus.add(record)
        self.connections = Connections(
            nodes, self.bus, self.id, command=command, change=change and not options.check
        )
        self.connections.begin()  # what follows is imported while the network is waited for
        import jinja2  # noqa: F401  (roles with templates want it next)

        from spark_cluster.cli.display import Display
        from spark_cluster.engine.play import Play

        display = Display(app.console, verbose=app.verbose, titled=change)
        self.bus.add(display)
        if options.step:
            from spark_cluster.cli.step import Stepper

            options.ask = Stepper(display).ask
        self._play = Play(app.inventory, app.project, self.connections, self.bus, options)
        self._finished = False

    def open(self, *, must: bool = True) -> Play:
        """Connect; with `must` every node has to be there.

        Raises:
            SparkClusterError: the first node's error.
        """
        from spark_cluster.engine.events import RunStarted

        gc.freeze()
        gc.enable()
        names = tuple(self.connections.nodes)
        signal.signal(signal.SIGTERM, _interrupt)
        self.bus.emit(RunStarted(self.id, self.command, names, self.check))
        failed = self.connections.open()
        self._play.out.update(failed)
        if failed and (must or len(failed) == len(names)):
            raise next(iter(failed.values()))
        self.begun = True
        return self._play

    @property
    def seconds(self) -> float:
        """Since the run began."""
        return time.monotonic() - self.started

    def document(self, *, ok: bool = True, **found: Any) -> dict[str, Any]:
        """The JSON of a run that can change something: `found` between what all of them tell."""
        seconds = {**self._play.seconds, "total": round(self.seconds, 3)}
        return {"ok": ok, "changed": self.recap.changed, **found, "seconds": seconds}

    def interrupted(self) -> Interrupted:
        """What state an interrupt leaves things in."""
        at_work = [f"{node} was at {what}" for node, what in self.recap.last.items()]
        if not at_work:
            return Interrupted(
                "interrupted; no node was being changed", hint="run the same command again to go on"
            )
        return Interrupted(
            f"interrupted; {', '.join(at_work)}",
            hint="a package manager or an image pull finishes there by itself, so does a model's "
            "download; all else is ended within seconds, no file is half-written. Run the same "
            "command again to go on",
        )

    def finish(self, error: str = "") -> None:
        """Tell the sinks that it is over.

        Raises:
            UsageError: all went well, but a name of --tags or --start-at was never met.
        """
        from spark_cluster.engine.events import RunFinished

        if self._finished:
            return
        self._finished = True
        unmatched = self._selection.unmatched() if self.begun and not error else None
        error = str(unmatched or error)
        self.bus.emit(RunFinished(not error, self.seconds, error))
        if unmatched is not None:  # before a command prints that all is well
            raise unmatched

    def show_recap(self) -> None:
        """The closing table, unless the output is JSON."""
        from spark_cluster.cli.display import recap

        if not self.app.as_json:
            recap(self.app.console, self.recap, self.seconds, check=self.check)

    def close(self) -> None:
        """End the live display first, then the connections."""
        self.bus.close()
        self.connections.close()


def _interrupt(_signal: int, _frame: Any) -> None:
    raise KeyboardInterrupt


def allowing(function: F) -> F:
    """The options of commands that serve or judge a recipe, given to them as `allow`."""

    def collect(ctx: click.Context, /, **given: Any) -> Any:
        from spark_cluster.allowances import Allowances
        from spark_cluster.userfiles.fields import env_name, node_path

        if "" in given["allow_files"]:
            raise UsageError("--allow-file: found nothing, expected a path")
        files = tuple(Path(name).expanduser().absolute() for name in given.pop("allow_files"))
        env = _checked("--allow-env", env_name, given.pop("allow_env"))
        mounts = _checked("--allow-mount", node_path, given.pop("allow_mounts"))
        allow = Allowances(files, env, mounts)
        return ctx.invoke(function, allow=allow, **given)

    return _with_options(collect, function, _ALLOWANCES)


def _checked(option: str, check: Callable[[str], str], given: Iterable[str]) -> tuple[str, ...]:
    """Raises:
    UsageError: one of them is not what is expected, for example an unset variable of a shell.
    """
    try:
        return tuple(map(check, given))
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


_ALLOWANCES = (
    click.option(
        "--allow-file",
        "allow_files",
        multiple=True,
        metavar="PATH",
        help="A file or folder of this machine that the recipe may send to the nodes; repeatable.",
    ),
    click.option(
        "--allow-env",
        "allow_env",
        multiple=True,
        metavar="NAME",
        help="A variable of this machine that the recipe may give to its containers; repeatable.",
    ),
    click.option(
        "--allow-mount",
        "allow_mounts",
        multiple=True,
        metavar="PATH",
        help="A folder of the nodes that the recipe may write to; repeatable.",
    ),
)


def changing(function: F) -> F:
    """The options of every command that can change nodes, given to it as `options`."""

    def collect(ctx: click.Context, /, **given: Any) -> Any:
        from spark_cluster.engine.options import Options, Selection

        names = ("check", "diff", "tags", "skip_tags", "start_at", "step")
        check, diff, tags, skip_tags, start_at, step = (given.pop(n) for n in names)
        if step:
            _can_ask(ctx.find_object(App), check=check)
        selection = Selection(_names(tags), _names(skip_tags), start_at)
        options = Options(check=check, diff=diff, selection=selection, step=step)
        return ctx.invoke(function, options=options, **given)

    return _with_options(collect, function, _OPTIONS)


_OPTIONS = (
    click.option("--check", is_flag=True, help="Change nothing; tell what would be changed."),
    click.option("--diff", is_flag=True, help="Show differences of files; secrets are masked."),
    click.option("--tags", default="", metavar="NAMES", help="Only these roles or tags."),
    click.option("--skip-tags", default="", metavar="NAMES", help="Not these roles or tags."),
    click.option(
        "--start-at",
        default="",
        metavar="NAME",
        help="Skip what comes before this role or resource.",
    ),
    click.option("--step", is_flag=True, help="Ask before each change (on a terminal)."),
    click.option("--exit-code", is_flag=True, help="With --check: status 10 if it would change."),
)


def _with_options(
    collect: Callable[..., Any], function: F, options: Sequence[Callable[[Any], Any]]
) -> F:
    """A command that takes options besides its own, and passes them on as `collect` does."""
    collect.__name__, collect.__doc__ = function.__name__, function.__doc__
    collect.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    for option in reversed(options):
        option(collect)
    return click.pass_context(collect)  # type: ignore[return-value]


def _can_ask(app: App | None, *, check: bool) -> None:
    """Raises:
    UsageError: --step has nobody to ask, or nothing.
    """
    if check:
        raise UsageError("--step and --check contradict each other", hint="leave one of them out")
    out = sys.stderr if app is not None and app.as_json else sys.stdout
    if not (sys.stdin.isatty() and out.isatty()):
        raise UsageError(
            "--step asks before each change, and there is no terminal to ask on",
            hint="--check --diff shows all changes without making any",
        )


def _names(text: str) -> frozenset[str]:
    return frozenset(name.strip() for name in text.split(",") if name.strip())


def leave_with(run: Run, *, exit_code: bool) -> None:
    """Status 10 when the user asked for it and something would change."""
    if exit_code and run.check and run.recap.changed:
        sys.exit(WOULD_CHANGE)
