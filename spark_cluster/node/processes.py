"""Commands on a node: each has a limit, is ended whole, and is never waited for without end."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from spark_cluster.node.output import Kept, Lines
from spark_cluster.node.values import ResourceError, explain

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

TERM_GRACE = 3.0
"""Seconds between SIGTERM and SIGKILL."""

KILL_GRACE = 3.0
"""Seconds after SIGKILL in which a process that the kernel lets go of is gone."""

DRAIN_S = 0.5
"""Seconds that output is still read after a command's end: what it left behind may hold its
outputs open for ever."""

TICK = 0.1
"""Seconds after which a wait checks its limit and the laptop again."""

BLOCK = 64 * 1024
"""Bytes read at once."""

Take = Callable[[int, bytes], None]
"""Is given what came on standard output (1) or standard error (2)."""


def environment(search_path: str = SEARCH_PATH, /, **more: str) -> dict[str, str]:
    """Return the variables of a command of ours: where programs are looked for, and `more`."""
    return {"PATH": search_path, "LANG": "C.UTF-8", "HOME": "/root", **more}


class Cancelled(Exception):
    """The laptop is gone or asked to stop: nothing more is begun."""


class TooLong(ResourceError):
    """A command was not done in time, and was ended."""


@dataclass(frozen=True)
class Completed:
    """A finished command: exit status and its two outputs as text.

    Attributes:
        left_out: bytes of its outputs that were too much to be kept.
    """

    argv: tuple[str, ...]
    status: int
    stdout: str
    stderr: str
    left_out: int = 0

    def check(self, doing: str, hint: str = "") -> Completed:
        """Itself when the status is 0.

        Raises:
            ResourceError: it is not; the message has the last lines that the command printed.
        """
        if self.status == 0:
            return self
        last_lines = (self.stderr.strip() or self.stdout.strip()).splitlines()[-6:]
        tail = "\n    ".join(last_lines) or "(it printed nothing)"
        raise ResourceError(
            f"{doing}: {self.argv[0]} ended with status {self.status}: {tail}", hint
        )


@dataclass
class Processes:
    """The commands running now, so that they can be ended when the laptop is gone."""

    cancelled: threading.Event = field(default_factory=threading.Event)
    _running: set[Running] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def cancel(self) -> None:
        """Have all ended by who waits for them, but what must finish."""
        self.cancelled.set()

    def kill(self) -> None:
        """SIGKILL for all that still runs, without waiting, but not for what must finish."""
        for one in self._snapshot():
            if not one.must_finish:
                one.signal(signal.SIGKILL)

    def finishing_until(self) -> float:
        """The moment (monotonic) at which the last of what must finish is at its limit; 0 when
        there is none."""
        ends = (TERM_GRACE + KILL_GRACE + r.until for r in self._snapshot() if r.must_finish)
        return max(ends, default=0.0)

    @contextlib.contextmanager
    def start(self, argv: Sequence[str], **options: Any) -> Iterator[Running]:
        """A command that is known here for as long as it is attended; see `Running`."""
        running = Running(argv, **options)
        with self._lock:
            self._running.add(running)
        try:
            yield running
        finally:
            with self._lock:
                self._running.discard(running)
            running.close()

    def run(
        self,
        argv: Sequence[str],
        *,
        stdin: bytes = b"",
        on_output: Callable[[str], None] | None = None,
        **options: Any,
    ) -> Completed:
        """Run a command and wait.

        Args:
            on_output: gets each line of output as it comes.
            options: of `Running`.

        Raises:
            ResourceError, Cancelled: as `Running.attend`.
        """
        kept = {1: Kept(), 2: Kept()}
        lines = {number: Lines(on_output) for number in kept} if on_output is not None else {}

        def take(number: int, data: bytes) -> None:
            kept[number].add(data)
            if lines:
                lines[number].add(data)

        with self.start(argv, **options) as running:
            status = running.attend(take, self.cancelled, stdin)
        for tail in lines.values():
            tail.end()
        out, err = kept.values()
        left_out = out.left_out + err.left_out
        return Completed(tuple(argv), status, out.text(), err.text(), left_out)

    def _snapshot(self) -> list[Running]:
        with self._lock:
            return list(self._running)


class Running:
    """A running command, in a session of its own.

    Args:
        timeout: seconds it may take, on the monotonic clock.
        must_finish: it goes on when the laptop is gone (its limit holds all the same).
        merged: its standard error goes where its standard output goes.
        user: run as this user, with their groups.

    Raises:
        ResourceError: there is no such command, folder or user, or the kernel does not start it.
    """

    def __init__(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        timeout: float,
        must_finish: bool = False,
        merged: bool = False,
        cwd: str | None = None,
        user: str | None = None,
        umask: int = -1,
    ) -> None:
        self.argv = tuple(argv)
        self.timeout = timeout
        self.until = time.monotonic() + timeout
        self.must_finish = must_finish
        self._mark = os.urandom(8).hex()
        try:
            self._process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if merged else subprocess.PIPE,
                env={**env, MARK: self._mark},
                cwd=cwd,
                umask=umask,
                start_new_session=True,
                **as_user(user),
            )
        except FileNotFoundError as error:
            raise ResourceError(f"{error.filename}: no such command or folder") from None
        except OSError as error:
            error.filename = error.filename or argv[0]  # none where no process could be made
            raise ResourceError(explain(error)) from None
        self._leader = process(self._process.pid)
        self._pidfd = os.pidfd_open(self._process.pid)  # readable when it ends

    def attend(self, take: Take, cancelled: threading.Event, stdin: bytes = b"") -> int:
        """Hand on what it prints until it has ended; its exit status.

        Raises:
            TooLong: it was not done in time; all of it was ended.
            ResourceError: it was not done in time and cannot be ended.
            Cancelled: the laptop is gone; it was ended.
        """
        with _Pipes(self._process, self._pidfd, take, stdin) as pipes:
            while not self.has_ended():
                if cancelled.is_set() and not self.must_finish:
                    self.end()
                    raise Cancelled
                left = self.until - time.monotonic()
                if left <= 0:
                    self._too_long()
                pipes.serve(min(TICK, left))
            drained = time.monotonic() + DRAIN_S
            left = DRAIN_S
            while pipes.open and left > 0:
                left = drained - time.monotonic()
                # Also of who comes late: a pipe full of it may be there.
                pipes.serve(max(left, 0.0))
        if cancelled.is_set() and not self.must_finish:
            raise Cancelled
        return self._process.wait()  # it has ended: this only collects it

    def has_ended(self) -> bool:
        """Return whether it has ended; it is not reaped, so that its number stays its own."""
        if self._process.returncode is not None:
            return True
        try:
            options = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self._process.pid, options) is not None
        except ChildProcessError:
            return True

    def members(self) -> list[Process]:
        """Its processes that live, what it started included."""
        return belonging(self._leader, self._mark) if self._leader is not None else []

    def signal(self, number: int, but: set[int] | frozenset[int] = frozenset()) -> list[Process]:
        """Send a signal to all of it, but to these; who was there."""
        found = self.members()
        for one in found:
            if one.pid not in but:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(one.pid, number)
        return found

    def end(self) -> list[Process]:
        """SIGTERM, after a grace SIGKILL; who does not end even so, within another grace."""
        left: list[Process] = []
        for number, grace in ((signal.SIGTERM, TERM_GRACE), (signal.SIGKILL, KILL_GRACE)):
            signalled: set[int] = set()
            limit, pause = time.monotonic() + grace, 0.005
            while left := self.signal(number, signalled):
                signalled |= {one.pid for one in left}
                if time.monotonic() > limit:
                    break
                time.sleep(pause)
                pause = min(2 * pause, TICK)
            else:
                return []
        return left

    def close(self) -> None:
        """Let go of it; it is collected if it has ended."""
        self._process.poll()
        if self._pidfd >= 0:
            os.close(self._pidfd)
            self._pidfd = -1
        for pipe in (self._process.stdin, self._process.stdout, self._process.stderr):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _too_long(self) -> None:
        left = self.end()
        text = f"{self.argv[0]}: not done after {self.timeout:g} s"
        if not left:
            raise TooLong(text)
        worst = next((one for one in left if one.state == BLOCKED), left[0])
        state = (
            "in uninterruptible sleep: the kernel or a driver holds it"
            if worst.state == BLOCKED
            else f"in state {worst.state}"
        )
        raise TooLong(
            f"{text}, and {worst.name} does not end, not even by SIGKILL "
            f"(process {worst.pid} is {state})",
            "the kernel's log may show which driver (journalctl -k -n 50 on the node); "
            "a reboot ends it",
        )


class _Pipes:
    """The pipes to and from a command, served without ever waiting for one of them."""

    def __init__(
        self,
        running: subprocess.Popen[bytes],
        pidfd: int,
        take: Take,
        stdin: bytes,
    ) -> None:
        self._take = take
        self._stdin = memoryview(stdin)
        self._input = running.stdin
        self._selector = selectors.DefaultSelector()
        self._selector.register(pidfd, selectors.EVENT_READ)
        self.open = 0
        for number, pipe in ((1, running.stdout), (2, running.stderr)):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
                self._selector.register(pipe.fileno(), selectors.EVENT_READ, number)
                self.open += 1
        if self._input is not None and not stdin:
            self._input.close()
        elif self._input is not None:
            os.set_blocking(self._input.fileno(), False)
            self._selector.register(self._input.fileno(), selectors.EVENT_WRITE, 0)

    def __enter__(self) -> _Pipes:
        return self

    def __exit__(self, *_exc: object) -> None:
        self._selector.close()

    def serve(self, timeout: float) -> None:
        """Move what can be moved; returns when the command ends, or after `timeout` seconds."""
        for key, _ in self._selector.select(timeout):
            if key.data == 0:
                self._write(key.fd)
            elif key.data is not None:
                self._read(key.fd, key.data)
            else:
                self._selector.unregister(key.fd)

    def _read(self, handle: int, number: int) -> None:
        try:
            data = os.read(handle, BLOCK)
        except BlockingIOError:
            return
        if data:
            self._take(number, data)
        else:
            self._selector.unregister(handle)
            self.open -= 1

    def _write(self, handle: int) -> None:
        with contextlib.suppress(BlockingIOError):
            try:
                self._stdin = self._stdin[os.write(handle, self._stdin[:BLOCK]) :]
            except BrokenPipeError:
                self._stdin = self._stdin[:0]
        if not self._stdin:
            self._selector.unregister(handle)
            assert self._input is not None  # noqa: S101  (it was registered)
            self._input.close()


def as_user(user: str | None) -> dict[str, Any]:
    """Return the arguments of `subprocess.Popen` for running as this user, with their groups.

    Raises:
        ResourceError: there is no such user.
    """
    if user is None:
        return {}
    import grp
    import pwd

    try:
        entry = pwd.getpwnam(user)
    except KeyError:
        raise ResourceError(f"no user {user!r} on this node") from None
    groups = [g.gr_gid for g in grp.getgrall() if user in g.gr_mem]
    return {"user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": groups}


# The processes of a command: its session, its children and theirs, and what it left behind.
#
# A child that began a session of its own is found by its parent; one whose parent has ended, too,
# by a variable that every command gets. Only /proc/PID/stat is read of all processes: reading more
# of one that hangs in a driver can hang itself.

MARK = "SPARK_CLUSTER_COMMAND"
"""The variable that tells, in the environment of all that a command starts, which command."""

GONE = "ZX"
"""States of /proc/PID/stat of what has ended and only waits to be collected."""

KERNEL_THREAD = 0x00200000
"""PF_KTHREAD of the kernel's include/linux/sched.h, among the flags of /proc/PID/stat."""

SYSTEM_UID_MAX = 999
"""The last uid of a system user; persons come after it. Logind leaves the semaphores of system
users alone (source: systemd-docs-logind)."""

UNKNOWN_S = 1.0
"""Seconds for which what cannot be known of processes is waited for before they are left alone:
one may be between two programs (execve), or in uninterruptible sleep, which every parent is in
for a moment that starts a child by vfork."""

BLOCKED = "D"
"""State of a process in uninterruptible sleep: the kernel or a driver holds it."""


class Process(NamedTuple):
    """A process as /proc/PID/stat tells it; `start` is in clock ticks since boot."""

    pid: int
    name: str
    state: str
    parent: int
    session: int
    start: int
    flags: int = 0


def process(pid: int) -> Process | None:
    """Return the process with this number."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as source:  # noqa: PTH123  (hundreds of them)
            text = source.read().decode(errors="replace")
    except OSError:
        return None
    name, _, tail = text.partition("(")[2].rpartition(")")
    fields = tail.split()
    state, parent, session, flags, start = (fields[number] for number in (0, 1, 3, 6, 19))
    return Process(pid, name, state, int(parent), int(session), int(start), int(flags))


def belonging(leader: Process, mark: str) -> list[Process]:
    """Return all living processes of a command.

    Args:
        leader: the process that was started, which leads a session; it may have ended, but must
            not have been collected, so that its number is not another's.
        mark: the value of MARK that it got.
    """
    others = [p for p in _listed() if p.start >= leader.start]
    until, own = time.monotonic() + UNKNOWN_S, {os.geteuid(), _owner(leader.pid)}
    # What a person's process shows of itself it can hold back for ever, and root with it.
    asked = [p for p in others if (uid := _owner(p.pid)) <= SYSTEM_UID_MAX or uid in own]

    def marked(mine: set[int]) -> set[int]:
        return {p.pid for p in asked if p.pid not in mine and _is_marked(p, mark, until)}

    return _family(others, leader.pid, marked)


def _owner(pid: int) -> int:
    """Return the user of a process; -1 of one that is gone."""
    try:
        return os.stat(f"/proc/{pid}").st_uid  # noqa: PTH116  (hundreds of them)
    except OSError:
        return -1


def below(pid: int) -> list[Process]:
    """Return all living processes that descend from one, or are in a session that one of these
    leads."""
    return [p for p in _family(_listed(), pid) if p.pid != pid]


def _family(
    others: list[Process],
    first: int,
    more: Callable[[set[int]], set[int]] = lambda _mine: set(),
) -> list[Process]:
    """Return the living ones of a process, its kin and theirs.

    Args:
        more: finds further ones, where kin leads to none.
    """
    mine, added = set[int](), {first}
    while added:
        mine |= added
        added = _kin(others, mine) or more(mine)
    return [p for p in others if p.pid in mine and p.state not in GONE]


def _listed() -> list[Process]:
    """Return all processes."""
    numbers = [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    return [p for p in map(process, numbers) if p is not None]


def _kin(others: list[Process], mine: set[int]) -> set[int]:
    """Children of these, and who is in a session that one of these leads."""
    return {p.pid for p in others if p.pid not in mine and (p.parent in mine or p.session in mine)}


def _is_marked(found: Process, mark: str, until: float) -> bool:
    """Return whether it has the variable, the only evidence when its parent has ended."""
    now: Process | None = found
    while now is not None and now.state not in GONE and not now.flags & KERNEL_THREAD:
        if now.state != BLOCKED:
            environment = _read(found.pid, "environ")
            if environment or _read(found.pid, "cmdline"):
                return f"{MARK}={mark}".encode() in environment.split(b"\0")
        if time.monotonic() > until:
            break
        time.sleep(0.001)
        now = process(found.pid)
    return False


def _read(pid: int, name: str) -> bytes:
    """A file of /proc/PID; nothing when the process is gone, or not to be looked into."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as source:  # noqa: PTH123
            return source.read()
    except OSError:
        return b""
