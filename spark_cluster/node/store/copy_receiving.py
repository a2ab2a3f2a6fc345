"""The receiver of a model: several connections to a node that sends it, over both links at once."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from spark_cluster.node.output import duration, gigabytes
from spark_cluster.node.store.copy_channel import (
    PIECE,
    Broken,
    CopyChannel,
    CopyRefused,
    Stream,
)
from spark_cluster.node.store.download import FileSource, Filling, Later, WrongSize
from spark_cluster.node.store.hub_cache import HubCache, alone
from spark_cluster.node.store.manifest import KEPT_FREE, Manifest, StoredFile
from spark_cluster.node.values import ResourceError

STREAMS = max(2, min(4, (os.cpu_count() or 1) // 4))
"""Streams to each address of the sender: with one, a core that encrypts or decrypts is the limit; a
small machine's cores are busy with two, and more only wait for each other."""
RECONNECT_S = 0.5
AGAIN_S = 10.0
"""Seconds after which an address that did not answer is tried again, where another one does."""
SWITCH_S = 15.0
"""Seconds without a byte after which the spare addresses are used, too, or, without any, it is said
that the sender is silent: longer than a stream that stalls is kept (`STALLED_S`)."""
SILENT_S = 60.0
"""Seconds without a byte from any stream after which the copy has failed."""
PATIENCE_S = 1800.0
"""Seconds to wait for the next file of a sender that is still downloading."""
WARNING = "warning: "
"""Begin of a line of output that the user is to see as a warning."""
MANAGEMENT_MB_S = 110
"""MB/s of payload over an Ethernet of 1 Gbit/s."""


@dataclass
class Receiver(FileSource):
    """A receiver: a source of files, which asks for them on several streams.

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
    _said: str = ""
    """What went wrong last, on a stream."""
    _warned: bool = False
    _filling: Filling | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _turns: Iterator[int] = field(default_factory=itertools.count)
    _open: set[Stream] = field(default_factory=set)
    _idle: deque[tuple[str, Stream]] = field(default_factory=deque)
    """Those of the open ones on which no file comes, with their addresses."""
    _failed: dict[str, float] = field(default_factory=dict)
    """When an address has failed last."""
    _heard: float = 0.0
    _last_come: float = 0.0
    """When the sender has said something, and when a file has come."""

    def run(self) -> dict[str, object]:
        """Fetch what is missing, and make the revision's links; return the bytes that came over the
        network (`moved`) and those that were present (`kept`), `seconds` and `switched`.

        Lines about progress are printed, and warnings when the sender is silent.

        Raises:
            ResourceError: no space, no sender, or content that is not what its hash says.
            OSError: a link or a file has the place of a folder.
        """
        begun = time.monotonic()
        self._filling = Filling(
            self.cache,
            self.manifest,
            self,
            workers=self.streams * len(self.addresses),
            done=f"from {self.sender}",
            kept_free=self.kept_free,
        )
        with alone(self.cache, self.manifest.repository):
            self._heard = self._last_come = time.monotonic()
            try:
                moved = self._filling.run(self.revision)
            finally:
                self.close()
        return {**moved, "switched": self.switched, "seconds": time.monotonic() - begun}

    def leave(self) -> None:
        """Tell the sender that it can end; one that is not there any more need not be told."""
        for address in (*self.addresses, *self.spare):
            with (
                contextlib.suppress(Broken, ResourceError),
                self.channel.connected(address, self.sender) as stream,
            ):
                stream.leave()
                return

    def content(self, file: StoredFile, begin: int) -> Iterator[memoryview]:
        """Ask for a file on a stream that is free, or on a new one."""
        address, stream = self._stream()
        usable = False
        try:
            stream.request(self._numbers[file.blob], begin)
            yield from stream.answered(memoryview(bytearray(PIECE)))
            usable, self._last_come = True, time.monotonic()
        except Later:
            usable = True
            self.alive()
            self._must_be_patient(file)
            raise
        except Broken as error:
            self._broke(address, error)
            raise
        finally:
            if usable and address not in self.spare:  # the fabric may answer again
                self._idle.append((address, stream))
            else:
                self._open.discard(stream)
                stream.close()

    def _stream(self) -> tuple[str, Stream]:
        """Return a stream and its address: one of those in turn that have not failed lately, once
        they were needed a spare one."""
        with contextlib.suppress(IndexError):
            return self._idle.popleft()
        since = time.monotonic() - AGAIN_S
        answer = [one for one in self.addresses if self._failed.get(one, since) <= since]
        usable = answer or (self.spare if self.switched else self.addresses)
        address = usable[next(self._turns) % len(usable)]
        try:
            stream = self.channel.connect(address, self.sender)
        except Broken as error:
            self._broke(address, error)
            raise
        self._open.add(stream)
        return address, stream

    def _broke(self, address: str, error: Broken) -> None:
        self._said, self._failed[address] = f"{address}: {error}", time.monotonic()

    def close(self) -> None:
        """Cut all streams; the threads that use them see their end."""
        for stream in [*self._open]:
            stream.cut()

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """The numbers of blobs in the sender's list."""
        return {blob: number for number, blob in enumerate(self.manifest.blobs)}

    def alive(self, _size: int = 0) -> None:
        """Take note that the sender has said something, or that this side was at work."""
        self._heard = time.monotonic()

    def _must_be_patient(self, file: StoredFile) -> None:
        """Raise ResourceError when the sender has not had the next file for too long."""
        if self._heard - self._last_come > self.patience_s:
            raise ResourceError(
                f"{self.manifest.repository}: {self.sender} has no {file.path} after "
                f"{self.patience_s:.0f} s",
                "the download there does not go on; run the command again",
            )

    def pause(self, error: Exception, failures: int) -> float:  # noqa: ARG002
        """Return when to connect again, over the spare addresses if nothing comes (`FileSource`).

        Raises:
            ResourceError: nothing has come for too long, or the sender cannot give a file.
        """
        if isinstance(error, (CopyRefused, WrongSize)):
            text = f"{self.sender} cannot give all of {self.manifest.repository}: {error}"
            raise ResourceError(text, self._verify) from None
        if not isinstance(error, Broken):
            raise error
        with self._lock:
            quiet_s = time.monotonic() - self._heard
            if quiet_s > self.silent_s:
                raise silent(self.sender, self.silent_s, self._said)
            if self.spare and not self.switched and quiet_s > self.switch_s:
                self.switched = True
                self._warn_of_switch()
            elif not self._warned and quiet_s > self.switch_s * (1 + self.switched):
                self._warned = True
                _warn(
                    f"nothing comes from {self.sender} any more ({self._said}): it is waited for, "
                    f"until {self.silent_s:.0f} s have gone by"
                )
        return RECONNECT_S

    def wrong(self, file: StoredFile) -> ResourceError:
        """Say that a file is damaged on the sender."""
        return ResourceError(
            f"{self.manifest.repository}: {file.path} from {self.sender} is not what its hash "
            f"says, twice",
            f"it is damaged there: {self._verify}",
        )

    @property
    def _verify(self) -> str:
        return f"spark-cluster --limit {self.sender} models verify"

    def _warn_of_switch(self) -> None:
        left = self._filling.progress.left if self._filling else 0
        slow = duration(left / (MANAGEMENT_MB_S * 1e6))
        _warn(
            f"nothing comes from {self.sender} over the fabric ({', '.join(self.addresses)}) "
            f"for {self.switch_s:.0f} s: the {gigabytes(left)} that are left go over "
            f"{self.spare[0]}, on 1 Gbit/s about {slow}; `spark-cluster doctor` "
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
