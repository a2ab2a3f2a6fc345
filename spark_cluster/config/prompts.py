"""The secrets that a user is asked for on the terminal."""

from __future__ import annotations

import getpass
import sys
import threading
from collections.abc import Callable


class Prompts:
    """What a user has answered: each question is asked once, and kept by this object only.

    One belongs to each inventory that is opened, so that a password for a node of one inventory is
    never offered to a node of that name in another.
    """

    def __init__(self) -> None:
        self._answers: dict[str, str] = {}
        self._asking = threading.Lock()

    @property
    def ask(self) -> Callable[[str], str] | None:
        """Ask on the terminal what was not answered yet; None without a terminal."""
        return self._ask if sys.stdin.isatty() else None

    def remember(self, what: str, answer: str) -> None:
        """Answer with it where the terminal would be asked."""
        with self._asking:
            self._answers[what] = answer

    def forget(self) -> None:
        """Ask again for everything: the answers are wrong, or no longer needed."""
        with self._asking:
            self._answers.clear()

    def _ask(self, what: str) -> str:
        with self._asking:
            if what not in self._answers:
                self._answers[what] = getpass.getpass(f"{what}: ")
            return self._answers[what]
