"""Commands on a node: started, waited for, ended when the laptop is gone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any

from spark_cluster.resources.base import ResourceError

SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class Cancelled(Exception):
    """The laptop is gone or asked to stop: nothing more is begun."""


@dataclass(frozen=True)
class Completed:
    """A finished command: exit status and its two outputs as text."""

    argv: tuple[str, ...]
    status: int
    stdout: str
    stderr: str

    def check(self, doing: str, hint: str = "") -> Completed:
        """Itself when the status is 0.

        Raises:
            ResourceError: it is not; the message has the last lines that the command printed.
        """
        if self.status == 0:
            return self
        said = (self.stderr.strip() or self.stdout.strip()).splitlines()[-6:]
        tail = "\n    ".join(said) or "(it printed nothing)"
        raise ResourceError(
            f"{doing}: {self.argv[0]} ended with status {self.status}: {tail}", hint
        )


@dataclass
class Processes:
    """The commands running now, so that they can be ended when the laptop is gone."""

    cancelled: threading.Event = field(default_factory=threading.Event)
    _running: set[int] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, group: int) -> None:
        with self._lock:
            self._running.add(group)
            if self.cancelled.is_set():  # it was started while `cancel` ended the others
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGTERM)

    def remove(self, group: int) -> None:
        with self._lock:
            self._running.discard(group)

    def cancel(self) -> None:
        """End what may be ended; what must finish was never added."""
        self.cancelled.set()
        with self._lock:
            for group in self._running:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(group, signal.SIGTERM)


def listen(
    process: subprocess.Popen[bytes], heard: Callable[[str], None], timeout: float
) -> tuple[bytes, bytes]:
    """`communicate()` that tells each line as it comes."""
    assert process.stdin and process.stdout and process.stderr  # noqa: S101  (all are pipes)
    process.stdin.close()
    process.stdin = None
    said: tuple[list[bytes], list[bytes]] = ([], [])

    def drain(stream: IO[bytes], lines: list[bytes]) -> None:
        for raw in stream:
            lines.append(raw)
            heard(raw.decode(errors="replace").rstrip())

    readers = [
        threading.Thread(target=drain, args=pair, daemon=True)
        for pair in zip((process.stdout, process.stderr), said, strict=True)
    ]
    for reader in readers:
        reader.start()
    try:
        process.wait(timeout)
    except subprocess.TimeoutExpired:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        raise
    finally:
        for reader in readers:
            reader.join()
    return b"".join(said[0]), b"".join(said[1])


def kill(process: subprocess.Popen[bytes]) -> None:
    """End it and all that it started, and collect it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()


def as_user(user: str | None) -> dict[str, Any]:
    """What `subprocess.Popen` needs to run something as this user, with their groups.

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
