"""A program on a terminal of its own, driven as its user would: reads what is shown, and types."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from waiting import HANG_S

_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Terminal:
    """`python ARGV` with a pseudo-terminal as its controlling one, so that getpass asks there.

    Attributes:
        shown: all that was shown so far, without colours.
    """

    def __init__(self, argv: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.shown = ""
        self._seen = 0
        self._bytes = b""
        self._pid, self._terminal = pty.fork()
        if self._pid == 0:
            with contextlib.suppress(BaseException):
                os.chdir(folder)
                os.execve(sys.executable, [sys.executable, *argv], dict(environment))
            os._exit(127)

    def expect(self, text: str) -> str:
        """Wait until it is shown after what was expected before; return what came until then."""
        deadline = time.monotonic() + HANG_S / 2
        while text not in self.shown[self._seen :]:
            if not self._read(deadline):
                raise AssertionError(f"{text!r} did not come; shown:\n{self.shown}")
        end = self.shown.index(text, self._seen) + len(text)
        before, self._seen = self.shown[self._seen : end], end
        return before

    def type(self, line: str) -> None:
        """Type a line, or Ctrl-C as `\\x03`."""
        os.write(self._terminal, line.encode() + (b"" if line == "\x03" else b"\n"))

    def answer(self, question: str, line: str) -> None:
        """Wait for a question and answer it."""
        self.expect(question)
        self.type(line)

    def end(self) -> int:
        """Wait for the program's end; return its exit status."""
        deadline = time.monotonic() + HANG_S / 2
        while self._read(deadline):
            pass
        _, status = os.waitpid(self._pid, 0)
        self._pid = 0
        assert "Traceback" not in self.shown, self.shown
        return os.waitstatus_to_exitcode(status)

    def close(self) -> None:
        """End the program if it is still there."""
        if self._pid:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._terminal)

    def _read(self, deadline: float) -> bool:
        """Take in what is shown next; False at the end, or when nothing more comes in time."""
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([self._terminal], [], [], left)[0]:
            return False
        try:
            data = os.read(self._terminal, 65536)
        except OSError:  # Linux says the end of a terminal so
            return False
        self._bytes += data
        text = _COLOURS.sub("", self._bytes.decode(errors="replace"))
        self.shown = text.replace("\r\n", "\n")
        return bool(data)
