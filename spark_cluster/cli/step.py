"""`--step`: a person decides on each change before it is made."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from spark_cluster.cli.console import styled
from spark_cluster.cli.display import Display, show_diff, summary

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
        what = change.get("reason") or summary(change["changes"])
        console.print(styled("\n[bold]{}[/]  {}  [yellow]{}[/]", node, change["id"], what))
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
