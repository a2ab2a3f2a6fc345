"""What a person sees of a run: lines for what changed, a live line a node for what goes on."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from spark_cluster.engine.events import (
    Applying,
    Changing,
    Connected,
    Event,
    NodeFailed,
    Note,
    Progress,
    Recap,
    Result,
    RunFinished,
    RunStarted,
    StageFinished,
    StageStarted,
    Tally,
)

STYLES = {
    "ok": "green",
    "change": "yellow",
    "unknown": "magenta",
    "failed": "red",
    "skipped": "dim",
}
WORDS = {
    "change": "changed",
    "unknown": "unknown",
    "failed": "FAILED",
    "ok": "ok",
    "skipped": "skip",
}


class Display:
    """A sink that draws; on a terminal the last lines are alive, elsewhere it only adds lines.

    Args:
        console: where to draw (standard error when standard output carries JSON).
        verbose: also show what was fine already.
        titled: begin with the command and the run's id.
    """

    def __init__(self, console: Console, *, verbose: bool = False, titled: bool = True) -> None:
        self.console = console
        self.verbose = verbose
        self.titled = titled
        self._doing: dict[str, tuple[str, float]] = {}
        self._width = 8
        self._check = False
        self._stages = 0
        self._lock = threading.Lock()
        self._held: list[Event] | None = None
        self._live: Live | None = None
        if console.is_terminal:
            self._live = Live(
                console=console, transient=True, refresh_per_second=8, get_renderable=self._draw
            )
            self._live.start()

    def take(self, event: Event) -> None:
        with self._lock:
            if self._held is not None:
                self._held.append(event)
                return
            self._show(event)

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        """For a question to a person: what happens meanwhile is shown afterwards."""
        with self._lock:
            self._held = []
        if self._live is not None:
            self._live.stop()
        try:
            yield
        finally:
            if self._live is not None:
                self._live.start()
            with self._lock:
                held, self._held = self._held, None
                for event in held:
                    self._show(event)

    def _show(self, event: Event) -> None:
        handler = self._HANDLERS.get(type(event))
        if handler is not None:
            handler(self, event)

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
        note = "  [magenta]check mode: nothing is changed[/]" if event.check else ""
        self.console.print(f"[bold]{escape(event.command)}[/]  [dim]run {event.run}[/]{note}")

    def _stage_started(self, event: StageStarted) -> None:
        self._stages += 1
        self.console.print(f"[bold blue]▸[/] [bold]{escape(event.stage)}[/]")

    def _stage_finished(self, event: StageFinished) -> None:
        self._doing.clear()
        mark = "[green]✔[/]" if event.ok else "[red]✘[/]"
        self.console.print(f"{mark} {escape(event.stage)}  [dim]{event.seconds:.1f} s[/]")

    def _connected(self, event: Connected) -> None:
        if self.verbose:
            self._line(event.node, f"connected  [dim]{event.seconds:.2f} s[/]")

    def _applying(self, event: Applying) -> None:
        self._doing[event.node] = (f"{event.role}: {event.resources} resources", time.monotonic())

    def _changing(self, event: Changing) -> None:
        self._doing[event.node] = (event.resource, time.monotonic())

    def _progress(self, event: Progress) -> None:
        now = self._doing.get(event.node, ("", time.monotonic()))[1]
        text = f"{event.resource}: {event.text}" if event.resource else event.text
        self._doing[event.node] = (text, now)

    def _result(self, event: Result) -> None:
        self._doing.pop(event.node, None)
        if event.verdict == "failed":  # its node fails with it, and says why
            return
        if event.verdict in ("ok", "skipped") and not self.verbose:
            return
        word = "would change" if self._check and event.verdict == "change" else WORDS[event.verdict]
        why = escape(event.reason or summary(event.changes))
        took = f"  [dim]{event.seconds:.1f} s[/]" if event.seconds >= 1 else ""
        style = STYLES[event.verdict]
        self._line(event.node, f"[{style}]{word}[/] {escape(event.resource)}  [dim]{why}[/]{took}")
        if event.diff:
            show_diff(self.console, event.diff, self._width + 4)

    def _node_failed(self, event: NodeFailed) -> None:
        self._doing.pop(event.node, None)
        word = "UNREACHABLE" if event.unreachable else "FAILED"
        self._line(event.node, f"[bold red]{word}[/] {escape(event.error)}")
        if event.hint:
            hint = Text(" " * (self._width + 4) + event.hint, style="cyan")
            self.console.print(hint, soft_wrap=True)

    def _note(self, event: Note) -> None:
        style = "yellow" if event.level == "warning" else "default"
        self._line(event.node, f"[{style}]{escape(event.text)}[/]")

    def _run_finished(self, _event: RunFinished) -> None:
        self._doing.clear()

    # -- drawing ---------------------------------------------------------------------------------

    def _line(self, node: str, text: str) -> None:
        self.console.print(f"  [bold]{escape(node):<{self._width}}[/]  {text}", soft_wrap=True)

    def _draw(self) -> Text:
        now = time.monotonic()
        lines = [
            f"  {node:<{self._width}}  {what}  {now - since:.0f} s"
            for node, (what, since) in sorted(self._doing.items())
        ]
        return Text("\n".join(lines), style="dim", no_wrap=True, overflow="ellipsis")

    _HANDLERS: Mapping[type[Event], Any] = {
        RunStarted: _run_started,
        StageStarted: _stage_started,
        StageFinished: _stage_finished,
        Connected: _connected,
        Applying: _applying,
        Changing: _changing,
        Progress: _progress,
        Result: _result,
        NodeFailed: _node_failed,
        Note: _note,
        RunFinished: _run_finished,
    }


def show_diff(console: Console, diff: str, indent: int) -> None:
    """A unified diff in colours."""
    for line in diff.splitlines():
        style = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "dim")
        console.print(Text(" " * indent + line, style=style), soft_wrap=True)


def summary(changes: Mapping[str, Any]) -> str:
    """`mode 0600 → 0644, mtu enp1s0f1np1 1500 → 9000`; digests are not worth reading."""
    if any(changes.get(name, [None])[0] == "absent" for name in ("kind", "state", "image")):
        return "new"
    parts = []
    for name, (was, then) in changes.items():
        if name in ("sha256", "spec"):
            parts.append("content" if name == "sha256" else "specification")
        elif isinstance(was, Mapping) and isinstance(then, Mapping):
            parts += [
                f"{name} {key} {_short(was.get(key))} → {_short(value)}"
                for key, value in then.items()
                if was.get(key) != value
            ]
        else:
            parts.append(f"{name} {_short(was)} → {_short(then)}")
    return ", ".join(parts)


def _short(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        value = " ".join(map(str, value))
    text = "none" if value in (None, "") else str(value)
    return text if len(text) <= 40 else text[:37] + "..."


def recap(console: Console, counted: Recap, seconds: float, *, check: bool) -> None:
    """The closing table."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("node")
    changed = "would change" if check else "changed"
    for title in ("ok", changed, "unknown", "failed", "skipped"):
        table.add_column(title, justify="right")
    for node, tally in counted.nodes.items():
        table.add_row(node, *_cells(tally))
    console.print()
    console.print(table)
    console.print(f"[dim]{seconds:.1f} s[/]")


def _cells(tally: Tally) -> list[str]:
    if tally.unreachable:
        return ["", "[red]unreachable[/]", "", "", ""]
    values = (
        (tally.ok, "green"),
        (tally.change, "yellow"),
        (tally.unknown, "magenta"),
        (tally.failed, "bold red"),
        (tally.skipped, "dim"),
    )
    return [f"[{style}]{n}[/]" if n else "[dim]0[/]" for n, style in values]
