"""The receiver: fetches the blobs that this node lacks from a sender, over several streams."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from spark_cluster.node.store import wire
from spark_cluster.node.store.adopt import make_own
from spark_cluster.node.store.arriving import Arriving, Part
from spark_cluster.node.store.blob_work import SILENT_S, Work
from spark_cluster.node.store.hub_cache import HubCache, alone
from spark_cluster.node.store.layout import KEPT_FREE
from spark_cluster.node.store.manifest import Manifest, StoredFile
from spark_cluster.node.values import ResourceError

if TYPE_CHECKING:
    import ssl

T = TypeVar("T")

STREAMS = max(2, min(4, (os.cpu_count() or 1) // 4))
"""Streams to each address of the sender: with one, a core that copies or decrypts is the limit; a
small machine's cores are busy with two, and more only wait for each other."""
RECONNECT_S = 0.5
SWITCH_S = 15.0
"""Seconds without a byte after which the spare addresses are used, too, or, without any, it is said
that the sender is silent: longer than a stream that stalls is kept (`wire.STALLED_S`)."""
MANAGEMENT_MB_S = 110
"""MB/s of payload over an Ethernet of 1 Gbit/s."""


@dataclass
class Received:
    """What a copy has moved.

    Attributes:
        moved: bytes that came over the network.
        kept: bytes that were there already.
        seconds: of wall time.
        switched: the spare addresses were needed.
    """

    moved: int
    kept: int
    seconds: float
    switched: bool = False


@dataclass
class BlobClient:
    """A receiver.

    Attributes:
        sender: its name, for messages.
        addresses: of the sender: each gets `streams` streams.
        spare: addresses that are used when no byte comes over the others for `switch_s` seconds.
        tls: None: the bytes come as they are.
        revision: the branch or tag that gets the commit at the end.
        patience_s: seconds that it waits for blobs which the sender does not have yet.
        progress: gets (bytes there, bytes in all), about once a second.
        warn: gets a sentence when the spare addresses are used, and when the sender is silent.
    """

    cache: HubCache
    manifest: Manifest
    token: str = field(repr=False)
    addresses: Sequence[tuple[str, int]]
    sender: str = "the sender"
    tls: ssl.SSLContext | None = None
    streams: int = STREAMS
    revision: str = ""
    patience_s: float = 1800.0
    silent_s: float = SILENT_S
    spare: Sequence[tuple[str, int]] = ()
    switch_s: float = SWITCH_S
    kept_free: int = KEPT_FREE
    progress: Callable[[int, int], None] = lambda _done, _total: None
    warn: Callable[[str], None] = lambda _text: None
    moved: int = 0
    switched: bool = False

    def run(self) -> Received:
        """Fetch what is lacking, and make the revision's links.

        Raises:
            ResourceError: no space, no sender, or content that is not what its hash says.
        """
        begun = time.monotonic()
        with alone(self.cache, self.manifest.repository):
            lacking = self.cache.lacking(self.manifest)
            if lacking.foreign:
                make_own(self.cache, self.manifest, lacking.foreign)
                lacking = self.cache.lacking(self.manifest)
            kept = self.manifest.size - lacking.size
            if lacking.blobs:
                self._must_fit(lacking.size)
                self.cache.files.make(self.cache.blobs(self.manifest.repository))
                self._fetch(lacking.blobs, kept)
            self.cache.publish(self.manifest, self.revision)
        return Received(self.moved, kept, time.monotonic() - begun, self.switched)

    def leave(self) -> None:
        """Tell the sender that it can end; one that is not there any more need not be told."""
        for address in (*self.addresses, *self.spare):
            gone = contextlib.suppress(OSError, EOFError, wire.WireError)
            with gone, connected(self, address) as stream:
                wire.send(stream, {"done": True})
                stream.recv(1)  # it closes the stream when it has understood
                return

    def _must_fit(self, size: int) -> None:
        free = self.cache.files.free()
        if free < size + self.kept_free:
            raise ResourceError(
                f"{self.manifest.repository} needs {_gb(size)} more on {self.cache.root}, where "
                f"{_gb(free)} are free and {_gb(self.kept_free)} are kept free",
                "`spark-cluster models size` shows what takes the space",
            )

    def _fetch(self, blobs: Sequence[StoredFile], kept: int) -> None:
        work = Work(self, blobs)
        threads, told = self._begin(work, self.addresses), False
        try:
            while not work.ended.wait(1.0):
                self.progress(kept + self.moved, self.manifest.size)
                if self.spare and not self.switched and work.silent() > self.switch_s:
                    self.switched = True
                    self.warn(_switched(self, self.manifest.size - kept - self.moved))
                    threads += self._begin(work, self.spare)
                    continue
                if not told and work.silent() > self.switch_s * (1 + self.switched):
                    told = True
                    self.warn(_waiting(self, work.said))
                work.must_go_on()
        finally:
            work.ended.set()
            for thread in threads:
                thread.join(2 * wire.STALLED_S)
            work.close()
        if work.failure is not None:
            raise work.failure
        self.progress(self.manifest.size, self.manifest.size)

    def _begin(self, work: Work, addresses: Sequence[tuple[str, int]]) -> list[threading.Thread]:
        threads = [
            threading.Thread(target=_Stream(self, work, address).run, daemon=True)
            for address in addresses
            for _ in range(self.streams)
        ]
        for thread in threads:
            thread.start()
        return threads


class _Stream:
    """One connection to the sender, made again when it breaks."""

    def __init__(self, client: BlobClient, work: Work, address: tuple[str, int]) -> None:
        self.client, self.work, self.address = client, work, address

    def run(self) -> None:
        """Fetch parts until all are there."""
        while not self.work.ended.is_set():
            try:
                with connected(self.client, self.address) as stream:
                    self._serve(stream)
            except ResourceError as error:
                self.work.fail(error)
            except wire.WireError as error:
                self.work.fail(_not_the_sender(self.client, self.address, error))
            except (OSError, EOFError) as error:
                self.work.said = f"{self.address[0]}: {error}"
                self.work.ended.wait(RECONNECT_S)

    def _serve(self, stream: socket.socket) -> None:
        while not self.work.ended.is_set():
            taken = _disk(self.work.take)
            if taken is None:
                self.work.ended.wait(0.02)
                continue
            arriving, part = taken
            came = False
            try:
                came = self._ask(stream, arriving, part)
            finally:
                if not came:
                    arriving.give_back(part)

    def _ask(self, stream: socket.socket, arriving: Arriving, part: Part) -> bool:
        """Fetch a part; return False where the sender does not have it yet.

        Raises:
            ResourceError: the sender cannot give it, or the disk is full.
        """
        wire.send(stream, {"blob": arriving.file.blob, "begin": part.begin, "end": part.end})
        answer = wire.receive(stream)
        if answer.get("later") is True:
            self.work.later(arriving, part)
            return True
        if "error" in answer:
            raise _cannot(self.client, arriving.file, str(answer["error"])[:300])
        if answer.get("bytes") != part.end - part.begin:
            raise wire.WireError("it sends another part than it was asked for")
        view = self.work.memory.take(part)
        wire.fill(stream, view)
        _disk(lambda: self.work.put(arriving, part, view))
        return True


@contextlib.contextmanager
def connected(client: BlobClient, address: tuple[str, int]) -> Iterator[socket.socket]:
    """A stream to the sender, both sides proven.

    Raises:
        WireError: it is not the sender.
        OSError, EOFError: it is not there.
    """
    import ssl

    with socket.create_connection(address, timeout=wire.HANDSHAKE_S) as connection:
        wire.fast(connection)
        stream = connection
        if client.tls is not None:
            try:
                stream = client.tls.wrap_socket(connection)
            except ssl.SSLCertVerificationError as error:
                raise wire.WireError("it has another certificate") from error
        with stream:
            wire.greet_as_receiver(stream, client.token)
            yield stream


def _disk(job: Callable[[], T]) -> T:
    """Do what writes on this node's disk.

    Raises:
        ResourceError: it is full, or broken; a network's OSError is another matter.
    """
    try:
        return job()
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise ResourceError(
            f"{error.filename or 'a file of the model'}: {error.strerror}",
            "make room; the next copy goes on where this one ended" if full else "",
        ) from error


def _not_the_sender(
    client: BlobClient, address: tuple[str, int], error: wire.WireError
) -> ResourceError:
    return ResourceError(
        f"what answers at {address[0]} port {address[1]} is not {client.sender}: {error}",
        "nothing of it was kept; another program may use the port",
    )


def _waiting(client: BlobClient, said: str) -> str:
    return (
        f"nothing comes from {client.sender} any more ({said or 'no answer'}): it is waited for, "
        f"until {client.silent_s:.0f} s have gone by"
    )


def _switched(client: BlobClient, left: int) -> str:
    minutes = left / (MANAGEMENT_MB_S * 1e6) / 60
    return (
        f"nothing comes from {client.sender} over the fabric "
        f"({', '.join(host for host, _ in client.addresses)}) for {client.switch_s:.0f} s: the "
        f"{_gb(left)} that are left go over {client.spare[0][0]}, on 1 Gbit/s about "
        f"{minutes:.0f} min; `spark-cluster doctor` examines the link"
    )


def _cannot(client: BlobClient, file: StoredFile, why: str) -> ResourceError:
    return ResourceError(
        f"{client.sender} cannot give {file.path} of {client.manifest.repository}: {why}",
        f"spark-cluster --limit {client.sender} models verify",
    )


def _gb(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
