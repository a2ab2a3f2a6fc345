"""A headless Chromium, driven over its DevTools protocol through a pair of pipes.

source: https://chromedevtools.github.io/devtools-protocol/ (`--remote-debugging-pipe`: JSON on
file descriptors 3 and 4, each message ended by a zero byte).
"""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
LIMIT = 60.0
"""Seconds for an answer, on a loaded machine."""


def installed() -> str | None:
    """Return the path of a browser."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Browser:
    """A page of a browser, and its errors."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read, self._unread, self._count = write, read, b"", 0
        self._session = ""
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        found = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = found["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Ask for something and return the answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self._count:
            self._note(answer)
        assert "error" not in answer, (method, answer["error"])
        return answer["result"]

    def open(self, page: Path | str, *, width: int, dark: bool = False) -> None:
        """Open a file or an address as on a screen of this width; it may take the fragment
        out of it."""
        address = page.as_uri() if isinstance(page, Path) else page
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=844,
                  deviceScaleFactor=1, mobile=width < 600)  # fmt: skip
        self.call("Page.navigate", url=address)
        end = time.monotonic() + LIMIT
        there = f"complete{address.partition('#')[0]}"
        while self.evaluate("document.readyState + location.href") != there:
            assert time.monotonic() < end, "the page is not there"
            time.sleep(0.05)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def screenshot(self, path: Path) -> bytes:
        """A picture of the whole page."""
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(found["data"]))
        return path.read_bytes()

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._unread:
            assert select.select([self._read], [], [], LIMIT)[0], "the browser does not answer"
            data = os.read(self._read, 1 << 20)
            assert data, "the browser has ended"
            self._unread += data
        message, _, self._unread = self._unread.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        if event.get("method") == "Log.entryAdded" and params["entry"]["level"] != "verbose":
            self.complaints.append(params["entry"]["text"])
        if event.get("method") == "Runtime.consoleAPICalled":
            self.complaints.append(str(params["args"]))


AS_3_AND_4 = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3]]
for number, fd in zip((3, 4), ends):
    os.dup2(fd, number)
os.execv(sys.argv[3], sys.argv[4:])
"""
"""Gives a program two descriptors as the numbers 3 and 4, which Chromium expects."""


@contextmanager
def browser(program: str, profile: Path) -> Iterator[Browser]:
    """Start a browser; it ends with the block.

    Args:
        profile: an empty folder of its own.
    """
    # Not by pass_fds=(3, 4): in this process these can be files that others open and close.
    inside, outside = os.pipe(), os.pipe()
    ends = inside[0], outside[1]
    process = subprocess.Popen(
        [sys.executable, "-IS", "-c", AS_3_AND_4, *map(str, ends), program,
         program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
         "--hide-scrollbars", f"--user-data-dir={profile}", "--remote-debugging-pipe"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        pass_fds=ends, start_new_session=True,
    )  # fmt: skip
    for fd in ends:
        os.close(fd)
    try:
        yield Browser(inside[1], outside[0])
    finally:
        process.kill()
        process.wait()
        os.close(inside[1])
        os.close(outside[0])
