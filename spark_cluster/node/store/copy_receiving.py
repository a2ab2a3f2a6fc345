"""The receiver of a model: several connections, a file at a time on each, hashed as it arrives."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from spark_cluster.node.store.copy_channel import (
    PIECE,
    Broken,
    CopyChannel,
    CopyRefused,
    Later,
    Stream,
)
from spark_cluster.node.store.hub_cache import HubCache, alone
from spark_cluster.node.store.manifest import KEPT_FREE, Manifest, StoredFile
from spark_cluster.node.store.verify import ByteProgress, make_own
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
PATIENCE_S = 1800.0
"""Seconds to wait for the next file of a sender that is still downloading."""
LOOK_S = 1.0
"""Seconds between two reports of progress."""
WARNING = "warning: "
"""Begin of a line of output that the user is to see as a warning."""
NEXT_S = 0.1
"""Seconds between two looks for a file to fetch."""
MANAGEMENT_MB_S = 110
"""MB/s of payload over an Ethernet of 1 Gbit/s."""


@dataclass
class Receiver:
    """A receiver.

    Attributes:
        addresses: of the sender: each gets `streams` streams.
        spare: addresses that are used when no byte comes over the others for `switch_s` seconds.
        revision: the branch or tag that gets the commit at the end.
        switched: the spare addresses were needed.
    """

    cache: HubCache
    manifest: Manifest
    channel: CopyChannel
    addresses: Sequence[str]
    sender: str = "the sender"
    spare: Sequence[str] = ()
    streams: int = STREAMS
    revision: str = ""
    patience_s: float = PATIENCE_S
    silent_s: float = SILENT_S
    switch_s: float = SWITCH_S
    kept_free: int = KEPT_FREE
    switched: bool = False
    _progress: ByteProgress = field(default_factory=lambda: ByteProgress(0))
    _ended: threading.Event = field(default_factory=threading.Event)
    _failure: ResourceError | None = None
    _said: str = ""
    """What went wrong last, on a stream."""
    _open: dict[Stream, threading.Thread] = field(default_factory=dict)
    """Streams to the sender, and the threads that use them."""
    _files: deque[tuple[int, StoredFile]] = field(default_factory=deque)
    """Those that no stream fetches just now, with their numbers in the sender's list."""
    _left: set[str] = field(default_factory=set)
    """Blobs that are not proved."""
    _settling: set[str] = field(default_factory=set)
    """Blobs that are being synced to the disk."""
    _wrong: set[str] = field(default_factory=set)
    """Blobs whose content was not what their hash says."""
    _postponed: int = 0
    """Files since the last one that came which the sender does not have yet."""
    _heard: float = 0.0
    _last_come: float = 0.0
    """When the sender has said something, and when a file was proved."""

    def run(self) -> dict[str, object]:
        """Fetch what is missing, and make the revision's links; return the bytes that came over the
        network (`moved`) and those that were present (`kept`), `seconds` and `switched`.

        Lines about progress are printed, and warnings when the sender is silent.

        Raises:
            ResourceError: no space, no sender, or content that is not what its hash says.
            OSError: a link or a file has the place of a folder.
        """
        begun = time.monotonic()
        with alone(self.cache, self.manifest.repository):
            missing = make_own(self.cache, self.manifest)
            kept = self.manifest.size - missing.size
            if missing.blobs:
                self._must_fit(missing.size)
                self.cache.files.make(self.cache.blobs(self.manifest.repository))
                self._progress = ByteProgress(self.manifest.size, f"from {self.sender}", have=kept)
                self._fetch({file.blob for file in missing.blobs})
            self.cache.publish(self.manifest, self.revision)
        about = {"moved": self._progress.read, "kept": kept, "switched": self.switched}
        return {**about, "seconds": time.monotonic() - begun}

    def leave(self) -> None:
        """Tell the sender that it can end; one that is not there any more need not be told."""
        for address in (*self.addresses, *self.spare):
            with (
                contextlib.suppress(Broken, ResourceError),
                self.channel.connected(address, self.sender) as stream,
            ):
                stream.leave()
                return

    def _must_fit(self, size: int) -> None:
        free = self.cache.files.free()
        if free < size + self.kept_free:
            raise ResourceError(
                f"{self.manifest.repository} needs {_gb(size)} more on {self.cache.root}, "
                f"where {_gb(free)} are free and {_gb(self.kept_free)} are kept free",
                "`spark-cluster models size` shows what takes the space",
            )

    def _fetch(self, blobs: set[str]) -> None:
        """Have all streams fetch, the largest files first; raises as `run`."""
        numbered = enumerate(self.manifest.blobs.values())
        missing = [one for one in numbered if one[1].blob in blobs]
        self._files.extend(sorted(missing, key=lambda one: -one[1].size))
        self._left = blobs
        self._heard = self._last_come = time.monotonic()
        self._begin(self.addresses)
        told = False
        try:
            while not self._ended.wait(LOOK_S):
                quiet = 0.0 if self._settling else time.monotonic() - self._heard
                if self.spare and not self.switched and quiet > self.switch_s:
                    self.switched = True
                    self._warn_of_switch()
                    self._begin(self.spare)
                elif not told and quiet > self.switch_s * (1 + self.switched):
                    told = True
                    _warn(
                        f"nothing comes from {self.sender} any more ({self._said or 'no answer'}): "
                        f"it is waited for, until {self.silent_s:.0f} s have gone by"
                    )
                if quiet > self.silent_s:
                    self._fail(silent(self.sender, self.silent_s, self._said))
        finally:
            self._ended.set()
            for stream, thread in [*self._open.items()]:
                stream.cut()
                thread.join()
        if self._failure is not None:
            raise self._failure

    def _begin(self, addresses: Sequence[str]) -> None:
        for address in self.streams * [*addresses]:
            threading.Thread(target=self._stream, args=(address,), daemon=True).start()

    def _stream(self, address: str) -> None:
        """Fetch over one address until everything is present."""
        memory = memoryview(bytearray(PIECE))
        while not self._ended.is_set():
            try:
                with (
                    self.channel.connected(address, self.sender) as stream,
                    self._cut_at_end(stream),
                ):
                    while not self._ended.is_set():
                        self._next(stream, memory)
            except Broken as error:
                self._said = f"{address}: {error}"
                self._ended.wait(RECONNECT_S)
            except CopyRefused as error:
                text = f"{self.sender} cannot give all of {self.manifest.repository}: {error}"
                self._fail(ResourceError(text, self._verify))
            except ResourceError as error:
                self._fail(error)
            except OSError as error:
                self._fail(_disk(error))

    @contextlib.contextmanager
    def _cut_at_end(self, stream: Stream) -> Iterator[None]:
        self._open[stream] = threading.current_thread()
        try:
            yield
        finally:
            del self._open[stream]

    def _next(self, stream: Stream, memory: memoryview) -> None:
        """Fetch the next file, if there is one; put it back if it does not come."""
        try:
            number, file = self._files.popleft()
        except IndexError:
            self._ended.wait(NEXT_S)
            return
        try:
            sound = self._receive(stream, number, file, memory)
        except Later:
            self._files.append((number, file))
            self._pause(file)
        except Broken:
            self._files.appendleft((number, file))
            raise
        else:
            if not sound:
                self._must_be_first(file)
                self._files.append((number, file))

    def _pause(self, file: StoredFile) -> None:
        """Wait a little once the sender has none of the files that it was asked for."""
        self._heard = time.monotonic()
        self._postponed += 1
        if self._heard - self._last_come > self.patience_s:
            raise ResourceError(
                f"{self.manifest.repository}: {self.sender} has no {file.path} after "
                f"{self.patience_s:.0f} s",
                "the download there does not go on; run the command again",
            )
        if self._postponed >= len(self._files):
            self._postponed = 0
            self._ended.wait(NEXT_S)

    def _must_be_first(self, file: StoredFile) -> None:
        """Take note that the content of a file was wrong. Raises ResourceError the second time."""
        if file.blob in self._wrong:
            raise ResourceError(
                f"{self.manifest.repository}: {file.path} from {self.sender} is not what its hash "
                f"says, twice",
                f"it is damaged there: {self._verify}",
            )
        self._wrong.add(file.blob)

    @property
    def _verify(self) -> str:
        return f"spark-cluster --limit {self.sender} models verify"

    def _receive(self, stream: Stream, number: int, file: StoredFile, memory: memoryview) -> bool:
        """Fetch what is missing of a file; give it its name, or remove it where its hash is wrong,
        and return False."""
        with self.cache.half(self.manifest.repository, file, self._hear) as half:
            stream.request(number, half.size)
            for data in stream.answered(memory):
                if half.size + len(data) > file.size:
                    raise CopyRefused(f"{file.path} does not end")
                half.add(data)
                self._progress.add(len(data))
                self._hear(len(data))
            self._settling.add(file.blob)
            try:
                sound = half.settle()
            finally:
                self._settling.discard(file.blob)
            if sound:
                self._proved(file)
            return sound

    def _hear(self, _size: int) -> None:
        self._heard = time.monotonic()

    def _proved(self, file: StoredFile) -> None:
        self._heard = self._last_come = time.monotonic()
        self._postponed = 0
        self._left.discard(file.blob)
        if not self._left:
            self._ended.set()

    def _fail(self, error: ResourceError) -> None:
        """End the copy."""
        self._failure = self._failure or error
        self._ended.set()

    def _warn_of_switch(self) -> None:
        left = self._progress.left
        minutes = left / (MANAGEMENT_MB_S * 1e6) / 60
        _warn(
            f"nothing comes from {self.sender} over the fabric ({', '.join(self.addresses)}) "
            f"for {self.switch_s:.0f} s: the {_gb(left)} that are left go over "
            f"{self.spare[0]}, on 1 Gbit/s about {minutes:.0f} min; `spark-cluster doctor` "
            "examines the link"
        )


def _warn(text: str) -> None:
    print(WARNING + text, flush=True)


def silent(sender: str, limit_s: float, said: str) -> ResourceError:
    return ResourceError(
        f"{sender} sends nothing for {limit_s:.0f} s ({said or 'no answer'})",
        "check that it is up and the link between the nodes; the next copy goes on where this "
        "one ended",
    )


def _disk(error: OSError) -> ResourceError:
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    hint = "make room; the next copy resumes where this one ended" if full else ""
    return ResourceError(f"{error.filename or 'a file of the model'}: {error.strerror}", hint)


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
