"""A program on a terminal of its own, driven as its user would: reads what is shown, and types."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
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


_PART = re.compile(
    r"\x1b\[(?P<count>\d*)(?P<move>[AK])|\x1b\[[0-9;?]*[A-Za-z]|(?P<char>.)", re.DOTALL
)


class Screen:
    """A pseudo-terminal whose other end is read all the time."""

    def __init__(self, columns: int) -> None:
        self._ours, self.terminal = pty.openpty()
        size = struct.pack("HHHH", 50, columns, 0, 0)
        fcntl.ioctl(self.terminal, termios.TIOCSWINSZ, size)
        self._bytes = b""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):  # Linux says the end of a terminal so
            while data := os.read(self._ours, 65536):
                self._bytes += data

    @property
    def written(self) -> str:
        """All that was written so far, as it came."""
        return self._bytes.decode(errors="replace")

    def close(self) -> str:
        """Return what stays on the screen, line by line, without colours."""
        os.close(self.terminal)
        self._reader.join(HANG_S)
        os.close(self._ours)
        return "\n".join(_left(self.written))


def _left(text: str) -> list[str]:
    """Return the lines that stay: a live display goes back over its own."""
    lines, row, at = [""], 0, 0
    for part in _PART.finditer(text):
        char = part["char"]
        if part["move"] == "A":
            row = max(0, row - int(part["count"] or 1))
        elif part["move"] == "K":
            lines[row] = "" if part["count"] == "2" else lines[row][:at]
        elif char == "\r":
            at = 0
        elif char == "\n":
            row, at = row + 1, 0
            lines += [""] * (row == len(lines))
        elif char is not None:
            lines[row] = lines[row][:at].ljust(at) + char + lines[row][at + 1 :]
            at += 1
    return lines


@contextlib.contextmanager
def on_screen(columns: int) -> Iterator[Screen]:
    """Have a terminal of so many columns as this process' outputs; its input stays what it is."""
    screen = Screen(columns)
    kept, streams = [os.dup(number) for number in (1, 2)], (sys.stdout, sys.stderr)
    told = {name: os.environ.pop(name) for name in ("COLUMNS", "LINES") if name in os.environ}
    for number in (1, 2):
        os.dup2(screen.terminal, number)
    sys.stdout, sys.stderr = (os.fdopen(os.dup(number), "w") for number in (1, 2))
    try:
        yield screen
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.close()
        sys.stdout, sys.stderr = streams
        for number, before in zip((1, 2), kept, strict=True):
            os.dup2(before, number)
            os.close(before)
        os.environ.update(told)
