"""The sender of a copy: starts the servers of its channel, watches and ends them."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_cluster.node.descendants import below
from spark_cluster.node.faults import explain
from spark_cluster.node.processes import Cancelled, Processes
from spark_cluster.node.store import copy_channel
from spark_cluster.node.store.hub_cache import HubCache, is_locked
from spark_cluster.node.store.manifest import Manifest
from spark_cluster.node.store.plain_folder import INCOMING, PlainFolder
from spark_cluster.node.values import ResourceError

IDLE_S = 60.0
"""Seconds without a receiver after which it ends; who has not proved to be it is none."""
WRITER_GONE_S = 10.0
"""Seconds without a writer of the model after which what is not there is not waited for."""
LIMIT_S = 24 * 3600.0
LOOK_S = 0.2

Given = Mapping[str, Any]


class Sender:
    """The servers of one copy.

    Args:
        folder: of this copy, with its keys; a file `done` in it says that the receiver has all.
        given: `addresses` and `spare` (host and port) and `encrypted`. A spare address that is not
            this node's own is left out: it may be that of a router in front of it.
        command: of the shell, for each connection.
        check: is called again and again, and raises ResourceError when nothing more will come.
    """

    def __init__(
        self,
        folder: Path,
        given: Given,
        command: str,
        processes: Processes,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self.folder = folder
        self.idle_s = IDLE_S
        self._check = check
        self._processes = processes
        self._ended, self._failed = threading.Event(), threading.Event()
        self._seen: dict[int, float] = {}
        (folder / "done").unlink(missing_ok=True)
        port = int(given["addresses"][0][1])
        addresses = [str(host) for host, _ in given["addresses"]]
        for address in addresses:
            _must_be_free(address, port)
        spare = [str(host) for host, _ in given["spare"]]
        if given["encrypted"]:
            both = list(dict.fromkeys((*addresses, *spare)))
            argv = [copy_channel.sshd(folder, both, port, command, processes)]
        else:
            argv = copy_channel.daemons(folder, addresses, port)
        self._encrypted = bool(given["encrypted"])
        self._servers = [threading.Thread(target=self._serve, args=(one,)) for one in argv]

    def run(self) -> None:
        """Serve until the receiver has all of it, or none has come for a while.

        Raises:
            ResourceError: `check` does, or a server ends by itself.
        """
        for server in self._servers:
            server.start()
        last, until = time.monotonic(), time.monotonic() + LIMIT_S
        try:
            while not self._ended.wait(LOOK_S) and not (self.folder / "done").exists():
                if self._failed.is_set():
                    raise ResourceError("the server of a copy has ended by itself", "try it again")
                if self._proved():
                    last = time.monotonic()
                if time.monotonic() > min(last + self.idle_s, until):
                    return
                self._check()
        finally:
            self.end()
            for server in self._servers:
                server.join()

    def end(self) -> None:
        """Have `run` end."""
        self._ended.set()

    def _serve(self, argv: Sequence[str]) -> None:
        environment = {**copy_channel.ENVIRONMENT, "HOME": "/root"}
        try:
            with self._processes.start(
                ending_with_this(argv),
                env=environment,
                timeout=LIMIT_S + IDLE_S,
                merged=True,
                cwd="/",
            ) as running:
                running.attend(lambda _number, _data: None, self._ended)
        except Cancelled:
            return
        except ResourceError:
            pass
        self._failed.set()

    def _proved(self) -> list[int]:
        """Return the processes that serve a receiver; end those of strangers after a while.

        With encryption one begins after the proof; without, rsync itself asks for the proof, and
        enters its module after it. Anyone's program can have such words, so only what descends
        from this process counts.
        """
        now, found, strangers = time.monotonic(), list[int](), dict[int, float]()
        marks = {f"--config={self.folder}/rsyncd.conf", f"{self.folder}/command"}
        for pid, parent in ((one.pid, one.parent) for one in below(os.getpid())):
            if parent == os.getpid() or not marks & _words(pid):
                continue
            if self._encrypted or _is_inside(pid):
                found.append(pid)
            else:
                strangers[pid] = self._seen.get(pid, now)
        self._seen = strangers
        oldest = sorted(strangers, key=lambda pid: strangers[pid])
        late = [pid for pid in oldest if now - strangers[pid] > copy_channel.PROOF_S]
        for pid in {*late, *oldest[: -copy_channel.STRANGERS]}:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        return found


def ending_with_this(argv: Sequence[str]) -> list[str]:
    """Return the command that ends with this process however that ends, kill -9 included; where it
    is gone before the kernel knows of that, the command does not begin."""
    begin = 'test "$PPID" = "$0" && exec "$@"'
    return ["setpriv", "--pdeathsig", "TERM", "sh", "-c", begin, str(os.getpid()), *argv]


def _words(pid: int) -> set[str]:
    """Return the words of a process's command; none when it is gone."""
    with contextlib.suppress(OSError):
        return set(Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0"))
    return set()


def _is_inside(pid: int) -> bool:
    """Return whether a process of rsync has entered a module."""
    with contextlib.suppress(OSError):
        place = Path(f"/proc/{pid}")
        return {str((place / name).readlink()) for name in ("cwd", "root")} != {"/"}
    return False


def _must_be_free(host: str, port: int) -> None:
    """Raise ResourceError where a server could not listen."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind((host, port))
        except OSError as error:
            raise ResourceError(
                f"nothing can be sent from {host} port {port}: {error.strerror}",
                "another copy may be running; `spark-cluster facts` shows the node's addresses",
            ) from error


@contextlib.contextmanager
def of_files(
    folder: Path, given: Given, cache: HubCache, manifest: Manifest, processes: Processes
) -> Iterator[Sender]:
    """Yield the sender of a manifest's files.

    Raises:
        ResourceError: a file is not there, not what it was, or can be written by someone else.
    """
    plain, repository = isinstance(cache, PlainFolder), manifest.repository
    hidden = "*.incomplete"
    if plain:
        hidden = f"/{INCOMING}" if any(file.changed for file in manifest.files) else ".*"
    follow, last_written = bool(given.get("follow")), time.monotonic()
    if follow:
        cache.files.make(cache.blobs(repository))

    def check() -> None:
        """See that what the receiver waits for is still being written."""
        nonlocal last_written
        if is_locked(cache, repository) or not cache.lacking(manifest).blobs:
            last_written = time.monotonic()
        elif time.monotonic() - last_written > WRITER_GONE_S:
            lacking = cache.lacking(manifest).paths[0]
            raise _cannot(manifest, lacking, "its download there has ended without it")

    for file in () if follow else manifest.blobs.values():
        try:
            os.close(cache.open(repository, file))
        except OSError as error:
            raise _cannot(manifest, file.path, explain(error)) from error
    with cache.files.at(cache.root if plain else cache.blobs(repository)) as handle:
        path = f"/proc/{os.getpid()}/fd/{handle}"  # this very folder, whatever its name leads to
        command = f"{_path()}{copy_channel.write_rsyncd(folder, path, hidden)}"
        yield Sender(folder, given, command, processes, check if follow else lambda: None)


def of_image(folder: Path, given: Given, ref: str, processes: Processes) -> Sender:
    """Return the sender of an image of Docker's: each connection gets it as an archive."""
    saved = f"docker save {shlex.quote(ref)} | zstd -q -1 -T0 && touch {folder}/done"
    return Sender(folder, given, f"{_path()}{saved}", processes)


def _path() -> str:
    return f"export PATH={shlex.quote(os.environ.get('PATH', os.defpath))}; "


def _cannot(manifest: Manifest, path: str, why: str) -> ResourceError:
    return ResourceError(
        f"{path} of {manifest.repository} cannot be sent: {why}", "`spark-cluster models verify`"
    )
