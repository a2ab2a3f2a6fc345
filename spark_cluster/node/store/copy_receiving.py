"""The receiver of a copy: several rsyncs side by side, each file hashed before it gets its name."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_cluster.node.beneath import Folder
from spark_cluster.node.open_files import pieces
from spark_cluster.node.processes import Cancelled, Completed, Processes
from spark_cluster.node.store.copy_channel import DONE, ENVIRONMENT, FILES, Channel
from spark_cluster.node.store.copy_staging import Staging
from spark_cluster.node.store.hub_cache import HubCache, alone
from spark_cluster.node.store.layout import KEPT_FREE
from spark_cluster.node.store.manifest import Manifest, StoredFile
from spark_cluster.node.store.plain_folder import PlainFolder
from spark_cluster.node.store.verify import make_own
from spark_cluster.node.values import ResourceError

STREAMS = max(2, min(4, (os.cpu_count() or 1) // 4))
"""Streams to each address of the sender: with one, a core that encrypts or decrypts is the limit; a
small machine's cores are busy with two, and more only wait for each other."""
RECONNECT_S = 0.5
SWITCH_S = 15.0
"""Seconds without a byte after which the spare addresses are used, too, or, without any, it is said
that the sender is silent: longer than a stream that stalls is kept (`STALLED_S`)."""
SILENT_S = 60.0
"""Seconds without a byte from any stream after which the copy has failed."""
LOOK_S = 1.0
"""Seconds between two looks for files that the sender did not have yet."""
MANAGEMENT_MB_S = 110
"""MB/s of payload over an Ethernet of 1 Gbit/s."""
LONGEST_S = 24 * 3600.0
LEAVE_S = 30.0
"""Seconds in which each address of a sender must take it that it can end."""
TRIES = 2
"""Times that a file is fetched whose content is not what its hash says."""
SMALL = 32 << 20
"""Bytes up to which a file goes with others by one rsync, and is begun again after a cut."""
MOST_TOGETHER = 1000
"""Files of one rsync."""
PIECE = 1 << 20
FILE_ERROR, CANNOT = 11, (1, 2, 3, 4, 23, 24)
"""Statuses of rsync(1): it cannot write; it will not get better by another try."""
DISK_FULL = os.strerror(errno.ENOSPC)
STRANGER = re.compile(r"Host key verification failed|auth failed on module")

Job = tuple[StoredFile, ...]


class Broken(Exception):
    """A connection has ended before all of it was there; another one goes on."""


@dataclass
class Receiver:
    """A receiver.

    Attributes:
        addresses: of the sender: each gets `streams` streams.
        spare: addresses that are used when no byte comes over the others for `switch_s` seconds.
        revision: the branch or tag that gets the commit at the end.
        follow: the sender does not have all of it yet.
        patience_s: seconds that it waits for a file which the sender does not have yet.
        progress: gets (bytes there, bytes in all), about once a second.
        warn: gets a sentence when the spare addresses are used, and when the sender is silent.
        moved: bytes that came over the network.
        switched: the spare addresses were needed.
    """

    cache: HubCache
    manifest: Manifest
    channel: Channel
    addresses: Sequence[str]
    sender: str = "the sender"
    spare: Sequence[str] = ()
    streams: int = STREAMS
    revision: str = ""
    follow: bool = False
    patience_s: float = 1800.0
    silent_s: float = SILENT_S
    switch_s: float = SWITCH_S
    kept_free: int = KEPT_FREE
    processes: Processes = field(default_factory=Processes)
    progress: Callable[[int, int], None] = lambda _done, _total: None
    warn: Callable[[str], None] = lambda _text: None
    moved: int = 0
    switched: bool = False

    def run(self) -> dict[str, object]:
        """Fetch what is lacking, and make the revision's links; return `moved` and `kept` bytes,
        `seconds` and `switched`.

        Raises:
            ResourceError: no space, no sender, or content that is not what its hash says.
        """
        begun = time.monotonic()
        repository = self.manifest.repository
        with alone(self.cache, repository):
            lacking = make_own(self.cache, self.manifest)
            kept = self.manifest.size - sum(file.size for file in lacking.blobs)
            if lacking.blobs:
                kept += _Fetching(self, lacking.blobs, kept).run()
            self.cache.publish(self.manifest, self.revision)
        about = {"moved": self.moved, "kept": kept, "switched": self.switched}
        return {**about, "seconds": time.monotonic() - begun}

    def leave(self) -> None:
        """Tell the sender that it can end; one that is not there any more need not be told."""
        for address in (*self.addresses, *self.spare):
            with contextlib.suppress(ResourceError, Cancelled):
                if self.rsync(address, DONE, "", "--list-only", "", limit_s=LEAVE_S).status == 0:
                    return

    def rsync(
        self,
        address: str,
        module: str,
        path: str,
        *words: str,
        largest: int = 0,
        limit_s: float = LONGEST_S,
        cwd: str = "/",
        stdin: bytes = b"",
    ) -> Completed:
        """Run an rsync that reads a path of the sender's; see `Channel.rsync`.

        Args:
            largest: bytes that it may write into a file, whatever comes.
            limit_s: seconds that it may take.
        """
        argv = ["prlimit", f"--fsize={largest}"]
        argv += filter(None, self.channel.rsync(address, module, path, *words))
        return self.processes.run(
            argv, stdin=stdin, env=ENVIRONMENT, timeout=limit_s, cwd=cwd, umask=0o022
        )


class _Fetching:
    """The files to fetch, the streams that fetch them, and how far they are."""

    def __init__(self, receiver: Receiver, blobs: Sequence[StoredFile], kept: int) -> None:
        self.receiver, self.kept = receiver, kept
        self.staging = Staging(receiver.cache, receiver.manifest.repository)
        self.ended = threading.Event()
        self.failure: ResourceError | None = None
        self.said = ""
        """What went wrong last, on a stream."""
        self._lock = threading.Lock()
        self._waiting = {file.blob: file for file in blobs} if receiver.follow else {}
        self._jobs = [] if receiver.follow else _jobs(blobs)
        self._left = {file.blob for file in blobs}
        self._arriving: dict[int, int] = {}
        """Handle of a file on its way to the bytes that it began with."""
        self._proving = 0
        self._tries: dict[str, int] = {}
        self._looking = threading.Lock()
        self._done = 0
        self._heard = self._last_come = time.monotonic()
        """When the sender has answered, and when a file was proved last."""
        self._begun = sum(self.staging.begun(file) for file in blobs)
        self._must_fit(sum(file.size for file in blobs) - self._begun)

    def run(self) -> int:
        """Fetch all of them; return the bytes that earlier copies have left.

        Raises:
            ResourceError: see `Receiver.run`.
        """
        receiver, total = self.receiver, self.receiver.manifest.size
        threads = self._begin(receiver.addresses)
        last, changed, told = -1, time.monotonic(), False
        try:
            while not self.ended.wait(LOOK_S):
                here = self._moved()
                if here != last or self._proving:
                    last, changed = here, time.monotonic()
                changed = max(changed, self._heard)
                silent = time.monotonic() - changed
                receiver.progress(self.kept + self._begun + here, total)
                if receiver.spare and not receiver.switched and silent > receiver.switch_s:
                    receiver.switched = True
                    left = total - self.kept - self._begun - here
                    receiver.warn(_switched(receiver, left))
                    threads += self._begin(receiver.spare)
                elif not told and silent > receiver.switch_s * (1 + receiver.switched):
                    told = True
                    receiver.warn(_waiting(receiver, self.said))
                if silent > receiver.silent_s:
                    self._fail(_silent(receiver, self.said))
        finally:
            self.ended.set()
            receiver.processes.cancel()
            for thread in threads:
                thread.join()
            receiver.moved = self._moved()
            receiver.processes.cancelled.clear()
        if self.failure is not None:
            raise self.failure
        self.staging.clear()
        receiver.progress(total, total)
        return self._begun

    def _must_fit(self, size: int) -> None:
        receiver = self.receiver
        free = min(receiver.cache.files.free(), self.staging.files.free())
        if free < size + receiver.kept_free:
            raise ResourceError(
                f"{receiver.manifest.repository} needs {_gb(size)} more on {receiver.cache.root}, "
                f"where {_gb(free)} are free and {_gb(receiver.kept_free)} are kept free",
                "`spark-cluster models size` shows what takes the space",
            )

    def _begin(self, addresses: Sequence[str]) -> list[threading.Thread]:
        threads = [
            threading.Thread(target=self._stream, args=(address,))
            for _ in range(self.receiver.streams)
            for address in addresses
        ]
        for thread in threads:
            thread.start()
        return threads

    def _stream(self, address: str) -> None:
        """Fetch over one address until all is there."""
        while not self.ended.is_set():
            job: Job = ()
            try:
                job = self._take()
                if job:
                    self._fetch(address, job)
                else:
                    self._look(address)
            except Broken as error:
                self.said = f"{address}: {error}"
                with self._lock:
                    self._jobs += [job] if job else []
                self.ended.wait(RECONNECT_S)
            except Cancelled:
                return
            except ResourceError as error:
                self._fail(error)
            except OSError as error:
                self._fail(_disk(error.filename, error.strerror or str(error)))

    def _take(self) -> Job:
        with self._lock:
            return self._jobs.pop() if self._jobs else ()

    def _look(self, address: str) -> None:
        """See which of the files that were waited for the sender has by now; one stream looks."""
        with contextlib.ExitStack() as stack:
            if self._waiting and self._looking.acquire(blocking=False):
                stack.callback(self._looking.release)
                listed = self._rsync(address, "", "--list-only", "").stdout
                names = {line.rpartition(" ")[2] for line in listed.splitlines()}
                with self._lock:
                    self._heard = time.monotonic()
                    ready = [self._waiting.pop(name) for name in names & self._waiting.keys()]
                    self._jobs += _jobs(ready)
                    if ready:
                        return
                if self._waiting and self._heard - self._last_come > self.receiver.patience_s:
                    self._fail(_too_late(next(iter(self._waiting.values())), self.receiver))
            self.ended.wait(LOOK_S)

    def _fetch(self, address: str, job: Job) -> None:
        """Fetch one large file, or several small ones together.

        Raises:
            Broken: the connection has ended.
            ResourceError: the sender cannot give it, or the disk is full.
        """
        staging = self.staging
        if job[0].size > SMALL:
            self._fetch_large(address, job[0])
            return
        with staging.together(threading.get_ident()) as (files, place):
            sources = [self._source(file) for file in job]
            with files.at(place) as folder:
                how = ("--files-from=-", "--from0", "--no-implied-dirs", "./")
                cwd, names = f"/proc/self/fd/{folder}", "\0".join(sources).encode()
                self._rsync(address, "", *how, cwd=cwd, stdin=names, largest=job[-1].size)
            with self._lock:
                self._done += sum(file.size for file in job)
            for file, source in zip(job, sources, strict=True):
                handle = files.open(place / source)
                try:
                    self._prove(files, place / source, handle, file)
                finally:
                    os.close(handle)

    def _fetch_large(self, address: str, file: StoredFile) -> None:
        files, half = self.staging.files, self.staging.half(file)
        handle = files.resume(half)
        try:
            begun = os.fstat(handle).st_size
            if begun > file.size:
                os.ftruncate(handle, 0)
                begun = 0
            with self._lock:
                self._arriving[handle] = begun
            if begun < file.size:
                how = "--append" if begun else "--checksum-choice=none"  # ours is computed anyway
                source = re.sub(r"([\[\]*?\\])", r"\\\1", self._source(file))
                with files.at(half.parent) as folder:
                    cwd = f"/proc/self/fd/{folder}"
                    words = ("--inplace", how, half.name)
                    self._rsync(address, source, *words, cwd=cwd, largest=file.size)
            with self._lock:
                del self._arriving[handle]
                self._done += file.size - begun
            self._prove(files, half, handle, file)
        finally:
            with self._lock:
                self._done += max(0, os.fstat(handle).st_size - self._arriving.pop(handle, 1 << 60))
            os.close(handle)

    def _source(self, file: StoredFile) -> str:
        """Return the path of a file below what the sender serves."""
        cache, repository = self.receiver.cache, self.receiver.manifest.repository
        root = cache.root if isinstance(cache, PlainFolder) else cache.blobs(repository)
        return str(cache.blob(repository, file.blob).relative_to(root))

    def _rsync(self, address: str, path: str, *words: str, **how: Any) -> Completed:
        """Run an rsync; raises as `_fetch`."""
        done = self.receiver.rsync(address, FILES, path, *words, **how)
        if done.status == 0:
            return done
        lines = [line for line in done.stderr.splitlines() if line.strip()]
        strange = [line for line in lines if STRANGER.search(line)]
        first = next(iter(strange or lines), f"status {done.status}")
        said = "".join(filter(str.isprintable, first[:300]))
        if strange:
            raise _not_the_sender(self.receiver, address, said)
        if DISK_FULL in done.stderr or done.status == FILE_ERROR:
            raise _disk(None, DISK_FULL if DISK_FULL in done.stderr else said)
        if done.status in CANNOT:
            raise _cannot(self.receiver, said)
        raise Broken(said)

    def _prove(self, files: Folder, staged: Path, handle: int, file: StoredFile) -> None:
        """Compare a file with its hash; give it its name, or throw it away."""
        hasher = file.hasher()
        with self._lock:
            self._proving += 1
        try:
            for piece in pieces(handle, file.size, PIECE):
                hasher.update(piece)
            sound = os.fstat(handle).st_size == file.size and file.fits(hasher)
            if sound:
                self.staging.settle(files, staged, handle, file)
            else:
                files.remove(staged)
        finally:
            with self._lock:
                self._proving -= 1
        with self._lock:
            if sound:
                self._last_come = time.monotonic()
                self._left.discard(file.blob)
            else:
                self._tries[file.blob] = self._tries.get(file.blob, 0) + 1
                self._jobs.append((file,))
        if self._tries.get(file.blob, 0) >= TRIES:
            self._fail(_wrong(file, self.receiver))
        if not self._left:
            self.ended.set()

    def _moved(self) -> int:
        """Bytes that have come over the network."""
        with self._lock:
            arriving = sum(os.fstat(one).st_size - begun for one, begun in self._arriving.items())
            return self._done + max(0, arriving)

    def _fail(self, error: ResourceError) -> None:
        """End the copy."""
        self.failure = self.failure or error
        self.ended.set()


def _jobs(files: Iterable[StoredFile]) -> list[Job]:
    """Return what one rsync each fetches: small files together; the largest last, as the next."""
    jobs: list[list[StoredFile]] = []
    size = 0
    for file in sorted(files, key=lambda file: file.size):
        if not jobs or size + file.size > SMALL or len(jobs[-1]) >= MOST_TOGETHER:
            jobs.append([])
            size = 0
        jobs[-1].append(file)
        size += file.size
    return [tuple(job) for job in jobs]


def _wrong(file: StoredFile, receiver: Receiver) -> ResourceError:
    return ResourceError(
        f"{receiver.manifest.repository}: {file.path} from {receiver.sender} is not what its hash "
        f"says, twice",
        f"it is damaged there: spark-cluster --limit {receiver.sender} models verify",
    )


def _too_late(file: StoredFile, receiver: Receiver) -> ResourceError:
    return ResourceError(
        f"{receiver.manifest.repository}: {receiver.sender} has no {file.path} after "
        f"{receiver.patience_s:.0f} s",
        "the download there does not go on; run the command again",
    )


def _silent(receiver: Receiver, said: str) -> ResourceError:
    return ResourceError(
        f"{receiver.sender} sends nothing for {receiver.silent_s:.0f} s ({said or 'no answer'})",
        "check that it is up and the link between the nodes; the next copy goes on where this "
        "one ended",
    )


def _disk(path: object, why: str) -> ResourceError:
    hint = "make room; the next copy goes on where this one ended" if why == DISK_FULL else ""
    return ResourceError(f"{path or 'a file of the model'}: {why}", hint)


def _not_the_sender(receiver: Receiver, address: str, why: str) -> ResourceError:
    return ResourceError(
        f"what answers at {address} port {receiver.channel.port} is not {receiver.sender}: {why}",
        "nothing of it was kept; another program may use the port",
    )


def _waiting(receiver: Receiver, said: str) -> str:
    return (
        f"nothing comes from {receiver.sender} any more ({said or 'no answer'}): it is waited for, "
        f"until {receiver.silent_s:.0f} s have gone by"
    )


def _switched(receiver: Receiver, left: int) -> str:
    minutes = left / (MANAGEMENT_MB_S * 1e6) / 60
    return (
        f"nothing comes from {receiver.sender} over the fabric ({', '.join(receiver.addresses)}) "
        f"for {receiver.switch_s:.0f} s: the {_gb(left)} that are left go over "
        f"{receiver.spare[0]}, on 1 Gbit/s about {minutes:.0f} min; `spark-cluster doctor` "
        "examines the link"
    )


def _cannot(receiver: Receiver, why: str) -> ResourceError:
    return ResourceError(
        f"{receiver.sender} cannot give all of {receiver.manifest.repository}: {why}",
        f"spark-cluster --limit {receiver.sender} models verify",
    )


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
