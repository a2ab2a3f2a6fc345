"""Long work in transient systemd units: it outlives the connection, and the next run continues.

A unit's folder (see worker.py) is named by a hash of whose work it is and of the command, so a
later run that wants the same finds it: running, or ended with a result that was not taken.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from spark_cluster.node import durable, own_program, paths, processes, worker
from spark_cluster.node.host import Host
from spark_cluster.node.processes import Cancelled, Completed, environment
from spark_cluster.node.safe_paths import closing_handle
from spark_cluster.node.values import ResourceError, explain
from spark_cluster.node.worker import Tail, text_of

BOOTED = "/run/systemd/system"
"""Is there when systemd runs the machine (sd_booted(3))."""

BEGIN_S = 30.0
"""Seconds that a unit may take to begin."""

STALE_S = 24 * 3600.0
"""Seconds after which a result that was not taken is no longer valid."""

PROGRESS_S = 0.25
"""At most one line of progress in so many seconds."""

TELL_S = 2.0
"""Seconds in which systemd must take an order, while the laptop is gone and the lock waits."""

ENDING_S = 10.0
"""Seconds that systemd gives a unit between SIGTERM and SIGKILL of its whole cgroup."""

LAST_RESORT_S = 60.0
"""Seconds after the limit of the work (which worker.py keeps) at which systemd ends its unit."""

ROOM_LEFT = 64 * 1024
"""Bytes: with less free space, a command that said nothing could not say it."""


def run(
    host: Host,
    key: str,
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    timeout: float = 3600.0,
    user: str | None = None,
    on_output: Callable[[str], None] | None = None,
    detach: bool = True,
    reuse_result: bool = False,
) -> Completed:
    """Run a long command in a transient systemd unit of its own, and wait.

    It goes on when the connection is cut. When the same command (`key` and `argv`) still
    runs, it is waited for instead of begun again. Without systemd it is an ordinary `run`.

    Args:
        key: whose work it is, e.g. a resource's id.
        stdin, env: travel in a file that only root reads and that is gone at once.
        timeout: seconds from its begin; kept on the node, also while no run waits for it.
        on_output: gets each line of output as it comes; otherwise `progress` is.
        detach: it goes on when the laptop is gone or interrupts; otherwise it is ended.
        reuse_result: when it ended while no run watched, take that result, once, instead of
            running it again: for what must not be done twice.

    Raises:
        ResourceError: no such command, it took too long, or it was ended from outside.
        Cancelled: the laptop is gone.
    """
    if host.processes.cancelled.is_set():
        raise Cancelled
    if not host.path(BOOTED).is_dir() or host.which("systemd-run") is None:
        return host.run(
            argv,
            stdin=stdin,
            env=env,
            timeout=timeout,
            user=user,
            on_output=None if stdin else on_output or _seldom(host.progress),
            must_finish=detach,
        )
    unit = _Unit(host, key, tuple(argv), timeout, on_output, detach)
    _forget_old(unit.folder.parent)
    if unit.running():
        host.note(f"{key}: {argv[0]} is still running there since {unit.since()}")
    else:
        done = unit.unwatched() if reuse_result else None
        if done is not None:
            return done
        unit.begin(stdin, env or {}, user)
    return unit.watch()


@dataclass
class _Unit:
    """A transient unit and its folder; see `run` for the arguments."""

    host: Host
    key: str
    argv: tuple[str, ...]
    timeout: float
    on_output: Callable[[str], None] | None
    detach: bool

    def __post_init__(self) -> None:
        text = "\0".join((self.key, *self.argv))
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        self.name = f"spark-cluster-{name}.service"
        self.folder = self.host.path(paths.UNITS) / name

    # -- what there is -------------------------------------------------------------------------

    def running(self) -> bool:
        return _running(self.folder)

    def since(self) -> str:
        begun = durable.read_object(self.folder / "begun") or worker.now()
        return time.strftime("%H:%M:%S", time.localtime(begun["time"]))

    def unwatched(self) -> Completed | None:
        """Take the result of work that ended while no run watched, where it has one."""
        result = durable.read_object(self.folder / "status")
        if not result or "error" in result or worker.age(result) > STALE_S:
            return None
        when = time.strftime("%H:%M:%S", time.localtime(result["time"]))
        what = f"{self.key}: {self.argv[0]} ended at {when} while no run watched"
        self.host.note(f"{what}, with status {result['status']}; this is its result")
        return self._take(result)

    # -- doing ---------------------------------------------------------------------------------

    def begin(self, stdin: bytes, env: Mapping[str, str], user: str | None) -> None:
        """Start the unit; returns when the work has begun.

        Raises:
            ResourceError: it cannot be started, or does not begin.
            Cancelled: the laptop is gone; it begins or not, without us, unless it shall not.
        """
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.folder.mkdir(mode=0o700)
        document = {
            "argv": self.argv,
            "env": environment(self.host.search_path, **env),
            "stdin": base64.b64encode(stdin).decode("ascii"),
            "user": user,
            "timeout": self.timeout,
        }
        (self.folder / "asked").write_text(json.dumps(worker.now()))
        handle = os.open(self.folder / "work", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as out:
            json.dump(document, out)
        try:
            self._start()
            self._wait_for_begin()
        except Cancelled:  # systemd may have begun it
            self._abandon()

    def _wait_for_begin(self) -> None:
        until = time.monotonic() + BEGIN_S
        while not (self.folder / "begun").exists():
            if time.monotonic() > until:
                self._stop()
                raise ResourceError(
                    f"{self.key}: its unit {self.name} does not begin", self._advice()
                )
            if self.host.processes.cancelled.wait(0.01):
                raise Cancelled

    def _start(self) -> None:
        try:
            done = self.host.run(self._systemd_run())
            if done.status != 0:  # perhaps the one before it is still being ended
                self._systemctl_stop(3 * ENDING_S)
                done = self.host.run(self._systemd_run())
            done.check(f"starting a unit for {self.key}")
        except ResourceError:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise

    def watch(self) -> Completed:
        """Tell what it prints until it ends, and take its result.

        Its limit is the worker's to keep; here it is only what is waited for, a little longer.

        Raises:
            ResourceError: it was not done in time, or was ended from outside.
            Cancelled: the laptop is gone; the work goes on, unless it shall not.
        """
        on_output = self.on_output or _seldom(self.host.progress)
        with (
            contextlib.closing(Tail(self.folder / "out", on_output)) as out,
            contextlib.closing(Tail(self.folder / "err", on_output)) as err,
        ):
            self._until_ended((out, err))
        result = durable.read_object(self.folder / "status")
        if not result:
            raise ResourceError(
                f"{self.key}: {self.argv[0]} was ended from outside "
                "(killed, or the node ran out of memory)",
                self._advice(),
            )
        return self._take(result)

    # -- inside --------------------------------------------------------------------------------

    def _until_ended(self, tails: tuple[Tail, ...]) -> None:
        begun = durable.read_object(self.folder / "begun") or worker.now()
        graces = processes.TERM_GRACE + processes.KILL_GRACE + processes.DRAIN_S
        limit = self.timeout + graces + ENDING_S
        wait = 0.02
        while self.running():
            moved = [tail for tail in tails if tail.read()]
            wait = 0.02 if moved else min(wait * 1.5, 0.5)
            if self.host.processes.cancelled.wait(wait):
                self._abandon()
            if worker.age(begun) > limit:
                self._stop()
                raise processes.TooLong(f"{self.argv[0]}: not done after {self.timeout:g} s")
        for tail in tails:
            tail.read(last=True)

    def _systemd_run(self) -> list[str]:
        properties = {
            "Description": f"spark-cluster: {self.key}",
            "RuntimeMaxSec": f"{self.timeout + LAST_RESORT_S:.0f}",
            "TimeoutStopSec": f"{ENDING_S:.0f}",
        }
        worker = own_program.argv("spark_cluster.node.worker", str(self.folder))
        return own_program.in_unit(self.name, worker, properties)

    def _abandon(self) -> NoReturn:
        """Leave the work to itself, begun or not, or have it ended. Raises Cancelled."""
        if not self.detach:
            self._stop(wait=False)
        raise Cancelled

    def _stop(self, *, wait: bool = True) -> None:
        """End the unit with all that is in it; without `wait` systemd is only told to."""
        if wait:
            self._systemctl_stop(3 * ENDING_S)
        else:
            self._systemctl_stop(TELL_S, "--no-block")
        shutil.rmtree(self.folder, ignore_errors=True)

    def _systemctl_stop(self, timeout: float, *options: str) -> None:
        with contextlib.suppress(ResourceError):  # systemd goes on with it, whatever we wait for
            argv = ("systemctl", "stop", *options, self.name)
            self.host.run(argv, timeout=timeout, must_finish=True)

    def _take(self, result: dict[str, Any]) -> Completed:
        """The result, of which nothing stays on the node."""
        out, err = (text_of(self.folder / name) for name in ("out", "err"))
        free = shutil.disk_usage(self.folder).free
        shutil.rmtree(self.folder, ignore_errors=True)
        if "error" in result:
            raise ResourceError(result["error"], result.get("hint", ""))
        if result["status"] != 0 and free < ROOM_LEFT and not err.strip():
            raise ResourceError(
                f"{self.key}: {self.argv[0]} ended with status {result['status']}: "
                + explain(OSError(28, "", str(self.folder.parent)), self.host.root)
            )
        return Completed(self.argv, int(result["status"]), out, err)

    def _advice(self) -> str:
        return f"`journalctl -u {self.name}` and `journalctl -k` on the node"


def _seldom(tell: Callable[[str], None]) -> Callable[[str], None]:
    """Pass on a line now and then: the progress, not the whole output."""
    last_shown = 0.0

    def on_output(line: str) -> None:
        nonlocal last_shown
        if time.monotonic() - last_shown > PROGRESS_S:
            last_shown = time.monotonic()
            tell(line)

    return on_output


def _running(folder: Path) -> bool:
    """Return whether a unit's worker is alive: it holds the lock all the time it runs."""
    try:
        with closing_handle(os.open(folder / "lock", os.O_RDWR)) as handle:
            return durable.is_lock_held(handle)
    except FileNotFoundError:
        return False


def _forget_old(folder: Path) -> None:
    """Remove what ended long ago and was not asked for, and what never began: it holds secrets."""
    if not folder.is_dir():
        return
    for old in folder.iterdir():
        if _running(old):
            continue
        status, asked = durable.read_object(old / "status"), durable.read_object(old / "asked")
        if status:
            forgotten = worker.age(status) > 7 * STALE_S
        elif (old / "begun").exists():
            forgotten = worker.age(asked) > 7 * STALE_S
        else:
            forgotten = worker.age(asked) > 2 * BEGIN_S
        if forgotten:
            shutil.rmtree(old, ignore_errors=True)


# Programs of ours (`own_program`) in units.


def result_of(
    host: Host, key: str, argv: Sequence[str], *, stdin: bytes = b"", timeout: float
) -> dict[str, Any]:
    """Run it, or join the one that runs, and return its result; lines before it are progress.

    Raises:
        ResourceError: it failed, with its own words, or ended without a result.
    """
    done = run(
        host,
        key,
        argv,
        stdin=stdin,
        timeout=timeout,
        on_output=lambda line: None if line.startswith("{") else host.progress(line),
    ).check(key)
    return own_program.answer_of(done.stdout, done.stderr, key)
