"""The display of a run: a line for each change, a live line for each node with work under way; and
how errors and notices are shown."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING

import click

from spark_cluster.cli.changes import GROUP, group_of, grouped, summary
from spark_cluster.cli.console import mark, painted, plain_table, styled, visible
from spark_cluster.errors import SparkClusterError
from spark_cluster.node.output import counted
from spark_cluster.runner.events import (
    Applying,
    Changing,
    Connected,
    Event,
    NodeFailed,
    Note,
    Progress,
    Result,
    RunFinished,
    RunStarted,
    StageFinished,
    StageStarted,
)

if TYPE_CHECKING:
    from rich.live import Live
    from rich.text import Text

    from spark_cluster.cli.results import Recap, Tally
    from spark_cluster.cli.terminal import Console

VERDICTS = {
    "ok": ("ok", "green"),
    "change": ("changed", "yellow"),
    "unknown": ("unknown", "magenta"),
    "failed": ("FAILED", "red"),
    "skipped": ("skip", "dim"),
}
"""The word and the style of each verdict, in the order of the recap."""


class Display:
    """A sink that draws; on a terminal the last lines are alive, elsewhere it only adds lines.

    Importing rich takes as long as a short play. So it begins to draw with the first thing that
    there is to show, while the connections are on their way; where there is none, it does not.

    Args:
        make: imports and makes the console to draw on (standard error when standard output carries
            JSON).
        verbose: also show what was fine already.
        titled: begin with the command and the run's id.
        to_paste: makes the commands of a hint or note name the nodes that the run is about.
    """

    def __init__(
        self,
        make: Callable[[], Console],
        *,
        verbose: bool = False,
        titled: bool = True,
        to_paste: Callable[[str], str] = str,
    ) -> None:
        self._make = make
        self.verbose = verbose
        self.titled = titled
        self._to_paste = to_paste
        self._doing: dict[str, tuple[str, float]] = {}
        self._width = 8
        self._check = False
        self._stages = 0
        self._noted: set[tuple[str, str]] = set()
        self._alike: dict[str, list[Result]] = {}
        self._lock = threading.Lock()
        self._held: list[Event] | None = None
        self._live: Live | None = None

    @cached_property
    def console(self) -> Console:
        """What is drawn on, made when it is first needed; a terminal's last lines live from then
        on."""
        made = self._make()
        if made.is_terminal:
            from rich.live import Live

            self._live = Live(
                console=made, transient=True, refresh_per_second=8, get_renderable=self._draw
            )
            self._live.start()
        return made

    def take(self, event: Event) -> None:
        with self._lock:
            if self._held is None:
                self._show(event)
            else:
                self._held.append(event)

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """Hold events back while a person is asked."""
        with self._lock:
            self._show_alike("")
            _ = self.console
            self._held = []
        if self._live is not None:
            self._live.stop()
        try:
            yield
        finally:
            if self._live is not None:
                self._live.start()
            with self._lock:
                held, self._held = self._held or [], None
                for event in held:
                    self._show(event)

    def confirm(self, question: str) -> bool:
        """Ask on the terminal; Enter is a no."""
        with self.quiet():
            return click.confirm(visible(question))

    def _show(self, event: Event) -> None:
        """Call the method of the event's name: `_run_started` for RunStarted."""
        name = re.sub("[A-Z]", lambda found: f"_{found[0].lower()}", type(event).__name__)
        handler = getattr(self, name, None)
        if handler is not None:
            if not isinstance(event, (Result, Changing, Progress)):
                self._show_alike(getattr(event, "node", ""))
            handler(event)

    def close(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    # -- one a kind of event ---------------------------------------------------------------------

    def _run_started(self, event: RunStarted) -> None:
        self._width = max([len(n) for n in event.nodes] or [8])
        self._check = event.check
        if not self.titled:
            return
        note = "  check mode: nothing is changed" if event.check else ""
        line = styled("[bold]{}[/]  [dim]run {}[/]", event.command, event.run)
        self.console.print(line + painted(note, "magenta"))

    def _stage_started(self, event: StageStarted) -> None:
        self._stages += 1
        self.console.say("[bold blue]▸[/] [bold]{}[/]", event.stage)

    def _stage_finished(self, event: StageFinished) -> None:
        self._doing.clear()
        sign = mark("ok" if event.ok else "fail")
        self.console.say("{} {}  [dim]{:.1f} s[/]", sign, event.stage, event.seconds)

    def _connected(self, event: Connected) -> None:
        if self.verbose:
            self._line(event.node, styled("connected  [dim]{:.2f} s[/]", event.seconds))

    def _applying(self, event: Applying) -> None:
        self._do(event.node, f"{event.role}: {counted(event.resources, 'resource')}")

    def _changing(self, event: Changing) -> None:
        self._do(event.node, event.resource)

    def _progress(self, event: Progress) -> None:
        since = self._doing.get(event.node, ("", time.monotonic()))[1]
        text = f"{event.text}  {event.resource}" if event.resource else event.text
        self._do(event.node, text, since)

    def _do(self, node: str, text: str, since: float | None = None) -> None:
        """Have the live lines say what a node is at."""
        self._doing[node] = (text, since or time.monotonic())
        _ = self.console

    def _result(self, event: Result) -> None:
        self._doing.pop(event.node, None)
        if event.verdict == "failed":  # its node fails with it, and says why
            return
        if event.verdict in ("ok", "skipped") and not self.verbose:
            return
        alike = self._alike.get(event.node, [])
        if alike and _likeness(alike[0]) != _likeness(event):
            self._show_alike(event.node)
        self._alike.setdefault(event.node, []).append(event)
        if self.verbose or event.diff or not group_of(event.resource):
            self._show_alike(event.node)

    def _show_alike(self, node: str) -> None:
        """Show what a node has changed alike, or all nodes have: one line where it is much.

        Args:
            node: empty for all.
        """
        for name in [node] if node else list(self._alike):
            alike = self._alike.pop(name, [])
            if len(alike) < GROUP:
                for event in alike:
                    self._show_result(event, event.resource, event.seconds)
            else:
                took = sum(event.seconds for event in alike)
                self._show_result(alike[0], grouped([event.resource for event in alike]), took)

    def _show_result(self, event: Result, what: str, seconds: float) -> None:
        word, style = VERDICTS[event.verdict]
        if self._check and event.verdict == "change":
            word = "would change"
        why = event.reason or summary(event.resource, event.changes)
        took = f"  {seconds:.1f} s" if seconds >= 1 else ""
        self._line(event.node, styled("{} {}  [dim]{}{}[/]", painted(word, style), what, why, took))
        if event.diff:
            show_diff(self.console, event.diff, self._width + 4)

    def _node_failed(self, event: NodeFailed) -> None:
        self._doing.pop(event.node, None)
        word = "UNREACHABLE" if event.unreachable else "FAILED"
        self._line(event.node, styled("[bold red]{}[/] {}", word, event.error))
        if event.hint:
            hint = " " * (self._width + 4) + self._to_paste(event.hint)
            self.console.print(painted(hint, "cyan"))

    def _note(self, event: Note) -> None:
        if (event.node, event.text) in self._noted:  # a role that is applied twice says it twice
            return
        self._noted.add((event.node, event.text))
        text = self._to_paste(event.text)
        self._line(event.node, painted(text, "yellow" if event.level == "warning" else ""))

    def _run_finished(self, _event: RunFinished) -> None:
        self._doing.clear()

    # -- drawing ---------------------------------------------------------------------------------

    def _line(self, node: str, text: Text) -> None:
        self.console.say("  [bold]{}[/]  {}", visible(node).ljust(self._width), text)

    def _draw(self) -> Text:
        from rich.text import Text

        now = time.monotonic()
        lines = [
            f"  {node:<{self._width}}  {now - since:.0f} s  {what}"
            for node, (what, since) in sorted(self._doing.items())
        ]
        text = "\n".join(" ".join(visible(line).split("\n")) for line in lines)
        return Text(text, style="dim", no_wrap=True, overflow="ellipsis")


def _likeness(event: Result) -> tuple[str, ...]:
    """Return what results that are told in one line have in common."""
    why = event.reason or summary(event.resource, event.changes)
    return (event.role, event.verdict, group_of(event.resource), why)


def show_diff(console: Console, diff: str, indent: int) -> None:
    """A unified diff in colours."""
    for line in diff.splitlines():
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "dim")
        console.print(painted(" " * indent + line, style), soft_wrap=True)


def recap(console: Console, run: Recap, seconds: float, *, check: bool) -> None:
    """The closing table."""
    counts = ("ok", "would change" if check else "changed", "unknown", "failed", "skipped")
    table = plain_table("node", *counts, right=counts)
    for node, tally in run.nodes.items():
        table.add_row(node, *_cells(tally))
    console.print()
    console.print(table)
    console.say("[dim]{:.1f} s[/]", seconds)


def _cells(tally: Tally) -> list[Text]:
    if tally.unreachable:
        return [painted(text, "red") for text in ("", "unreachable", "", "", "")]
    styles = {verdict: style for verdict, (_, style) in VERDICTS.items()} | {"failed": "bold red"}
    counts = zip(tally.counts, styles.values(), strict=True)
    return [painted(str(count), style if count else "dim") for count, style in counts]


# -- errors and notices, on standard error ---------------------------------------------------------


def show_error(message: str, hint: str = "", *, node: str = "") -> None:
    """An error and its hint on standard error.

    Args:
        node: whose it is; stands before both.
    """
    before = f"{node}: " if node else ""
    tell(styled("{}[bold red]error: [/]{}", before, message))
    if hint:
        tell(styled("{}  [cyan]{}[/]", before, hint))


def tell(text: Text | str) -> None:
    """Print a line for people on standard error."""
    from spark_cluster.cli.terminal import Console

    Console(stderr=True).print(text)


def show_failure(error: SparkClusterError) -> None:
    """Print an error with its place and hint on standard error; in short what stands above it."""
    if error.told and sys.stdout.isatty() and sys.stderr.isatty():
        show_error("the run failed; the reason stands above")
        return
    show_error(f"{error.where}: {error.message}" if error.where else error.message, error.hint)
