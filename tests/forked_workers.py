"""Runs tests in forks of the process that has collected them: `--forks 6`.

To import and collect eight thousand tests takes as long as hundreds of them; each worker of
pytest-xdist does it again. Each fork has a block of tests that stand together, so that what a
module's tests share (a site, a server, a report) is made once, and takes half of another's when its
own are done. One that dies is replaced, and the test that it ran has failed.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import signal
import tempfile
import time
import traceback
import warnings
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NoReturn

import pytest

NONE = -1
WHOLE = 20
"""So many tests of one file are not shared between forks: what they share may be expensive."""
LEAVE_S = 10.0
"""Seconds for the forks to end after Ctrl-C, before they are killed."""


class Shares:
    """The tests that each fork has yet to run, as two numbers in memory that all of them share; and
    the one that it runs, and the one after that.

    Args:
        files: the file of each test, in their order.
    """

    def __init__(self, files: Sequence[object], forks: int) -> None:
        self._numbers = memoryview(mmap.mmap(-1, 8 * 4 * forks)).cast("q")
        self._lock = tempfile.TemporaryFile()  # noqa: SIM115 - as long as this process
        self._begins = [i for i, file in enumerate(files) if i and file != files[i - 1]]
        self.forks = forks
        first = 0
        for fork in range(forks):
            end = len(files)
            if fork < forks - 1:
                end = self._cut(first, end, end * (fork + 1) // forks)
            self._set(fork, first, end)
            self.mark(fork, NONE, NONE)
            first = end

    def take(self, fork: int) -> int:
        """Return a test of this fork, else of the one with the most left, else NONE."""
        with self._locked():
            first, end = self._left(fork)
            if first == end:
                first, end = self._taken_over()
                if first == end:
                    return NONE
            self._set(fork, first + 1, end)
            return first

    def stop(self) -> None:
        """Leave what has not begun."""
        with self._locked():
            for fork in range(self.forks):
                self._set(fork, 0, 0)

    def mark(self, fork: int, running: int, following: int) -> None:
        self._numbers[4 * fork + 2] = running
        self._numbers[4 * fork + 3] = following

    def marked(self, fork: int) -> tuple[int, int]:
        return self._numbers[4 * fork + 2], self._numbers[4 * fork + 3]

    def _taken_over(self) -> tuple[int, int]:
        """Take the second half of another's tests, the first that can be divided; or nothing."""
        by_size = sorted(range(self.forks), key=lambda fork: -self._size(fork))
        for other in by_size:
            first, end = self._left(other)
            middle = self._cut(first, end, (first + end) // 2)
            if middle < end:
                self._set(other, first, middle)
                return middle, end
        return 0, 0

    def _cut(self, first: int, end: int, wanted: int) -> int:
        """Return where to divide tests: between two files, else within one that has many."""
        begins = self._begins[bisect_right(self._begins, first) : bisect_left(self._begins, end)]
        if begins:
            return min(begins, key=lambda begin: abs(begin - wanted))
        return wanted if end - first > WHOLE else end

    def _left(self, fork: int) -> tuple[int, int]:
        return self._numbers[4 * fork], self._numbers[4 * fork + 1]

    def _size(self, fork: int) -> int:
        first, end = self._left(fork)
        return end - first

    def _set(self, fork: int, first: int, end: int) -> None:
        self._numbers[4 * fork] = first
        self._numbers[4 * fork + 1] = end

    @contextmanager
    def _locked(self) -> Iterator[None]:
        fcntl.lockf(self._lock, fcntl.LOCK_EX)  # a process that dies has it no more
        try:
            yield
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN)


@dataclass(eq=False)  # pytest keeps plugins in sets
class Sender:
    """The plugin of a fork that sends what pytest's own process is to show: all reports of a test
    at once, so that its lines stand together there."""

    config: pytest.Config
    to: Connection
    reports: list[dict[str, Any]] = field(default_factory=list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self.config.hook
        self.reports.append(hook.pytest_report_to_serializable(config=self.config, report=report))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        seen = warning_message
        category = seen.category if seen.category.__module__ == "builtins" else Warning
        said = (f"{seen.category.__name__}: {seen.message}", category, seen.filename, seen.lineno)
        self.to.send(("warning", said, when, nodeid, location))

    def pytest_internalerror(self, excrepr: object) -> None:
        self.to.send(("error", str(excrepr)))

    def done(self, index: int) -> None:
        self.to.send(("test", index, self.reports))
        self.reports = []


class Forks:
    """The forks of this session, and what their reports are handed to."""

    def __init__(self, session: pytest.Session, forks: int) -> None:
        self.session = session
        self.shares = Shares([item.path for item in session.items], forks)
        self.pids: dict[Connection, tuple[int, int]] = {}
        self.base = session.config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
        self.started = 0
        self.shown: set[int] = set()

    def run(self) -> None:
        for fork in range(self.shares.forks):
            self.start(fork)
        try:
            while self.pids:
                for ready in wait(list(self.pids)):
                    assert isinstance(ready, Connection)
                    self.receive(ready)
        except BaseException:
            self.shares.stop()
            self.end_all()
            raise
        if not self.ending and len(self.shown) < len(self.session.items):
            raise RuntimeError("the forks have ended before all tests were run")

    @property
    def ending(self) -> bool:
        """Whether no more tests are to be begun."""
        return bool(self.session.shouldfail or self.session.shouldstop)

    def start(self, fork: int, first: int = NONE) -> None:
        """Start one; `first` is a test that another has taken and not begun."""
        ours, theirs = Pipe(duplex=False)
        self.started += 1
        pid = os.fork()
        if pid == 0:
            for other in [ours, *self.pids]:
                other.close()
            in_fork(self, theirs, fork, first)
        theirs.close()
        self.pids[ours] = (pid, fork)

    def receive(self, ready: Connection) -> None:
        try:
            kind, *what = ready.recv()
        except (EOFError, ConnectionError):
            self.ended(ready)
            return
        hook = self.session.config.hook
        if kind == "test":
            index, reports = what
            self.log(index, [self.report(data) for data in reports])
        elif kind == "warning":
            (text, category, filename, line), when, nodeid, location = what
            seen = warnings.WarningMessage(text, category, filename, line)
            said = {"warning_message": seen, "when": when, "nodeid": nodeid, "location": location}
            hook.pytest_warning_recorded.call_historic(kwargs=said)
        else:
            raise RuntimeError(f"pytest failed in a fork:\n{what[0]}")
        if self.ending:
            self.shares.stop()

    def report(self, data: dict[str, Any]) -> pytest.TestReport:
        config = self.session.config
        return config.hook.pytest_report_from_serializable(config=config, data=data)  # type: ignore[no-any-return]

    def log(self, index: int, reports: list[pytest.TestReport]) -> None:
        self.shown.add(index)
        item = self.session.items[index]
        hook = self.session.config.hook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        for report in reports:
            hook.pytest_runtest_logreport(report=report)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)

    def ended(self, connection: Connection) -> None:
        pid, fork = self.pids.pop(connection)
        connection.close()
        _, status = os.waitpid(pid, 0)
        running, following = self.shares.marked(fork)
        self.shares.mark(fork, NONE, NONE)
        if running != NONE:
            item = self.session.items[running]
            text = f"the process that ran it ended with {os.waitstatus_to_exitcode(status)}"
            self.log(running, [pytest.TestReport(
                item.nodeid, item.location, {}, "failed", text, "call",
            )])  # fmt: skip
        if running != NONE and not self.ending:
            self.start(fork, following)

    def end_all(self) -> None:
        """Wait for all; Ctrl-C has reached them, too."""
        deadline = time.monotonic() + LEAVE_S
        for connection, (pid, _) in self.pids.items():
            connection.close()
            while os.waitpid(pid, os.WNOHANG) == (0, 0):
                if time.monotonic() > deadline:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                time.sleep(0.02)
        self.pids.clear()


def in_fork(forks: Forks, to: Connection, fork: int, first: int) -> NoReturn:
    """Run tests until there are none, and end this process."""
    status = 1
    try:
        config = forks.session.config
        config.pluginmanager.unregister(name="terminalreporter")
        sender = Sender(config, to)
        config.pluginmanager.register(sender)
        capture = config.pluginmanager.getplugin("capturemanager")
        capture.stop_global_capturing()  # its files are those of all forks
        capture.start_global_capturing()
        capture.suspend_global_capture()
        base = forks.base / f"fork{forks.started}"
        base.mkdir(mode=0o700)
        config._tmp_path_factory._basetemp = base  # type: ignore[attr-defined]
        os.environ["PYTEST_XDIST_WORKER"] = base.name  # what plugins know such a process by
        run_tests(forks, sender, fork, first)
        status = 0
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:
        pass  # no one listens any more
    except BaseException:  # noqa: BLE001 - this process must not go on as pytest's own
        to.send(("error", traceback.format_exc()))
    finally:
        os._exit(status)


def run_tests(forks: Forks, sender: Sender, fork: int, first: int) -> None:
    items, shares = forks.session.items, forks.shares
    index = shares.take(fork) if first == NONE else first
    while index != NONE:
        following = shares.take(fork)
        shares.mark(fork, index, following)
        after = None if following == NONE else items[following]
        sender.config.hook.pytest_runtest_protocol(item=items[index], nextitem=after)
        sender.done(index)
        index = following
    shares.mark(fork, NONE, NONE)


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "run the tests in so many forks of the process that has collected them"
    parser.addoption("--forks", type=int, default=0, metavar="NUMBER", help=text)


def pytest_runtestloop(session: pytest.Session) -> bool | None:
    forks = min(session.config.getoption("--forks"), len(session.items))
    if forks < 2 or session.config.option.collectonly or session.testsfailed:
        return None  # pytest's own loop
    terminal = session.config.pluginmanager.getplugin("terminalreporter")
    if terminal is not None:
        terminal.showfspath = False  # each line would name another file
    Forks(session, forks).run()
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    if session.shouldstop:
        raise session.Interrupted(session.shouldstop)
    return True
