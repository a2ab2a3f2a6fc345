"""The sender: serves the blobs of one revision to the nodes that lack them, and nothing else."""

from __future__ import annotations

import os
import selectors
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field

from spark_cluster.node.open_files import is_own
from spark_cluster.node.store import unproved, wire
from spark_cluster.node.store.hub_cache import HubCache, is_locked
from spark_cluster.node.store.manifest import Manifest, StoredFile
from spark_cluster.node.values import ResourceError

MOST_STREAMS = 128
"""Streams of receivers; each has proved the token."""
IDLE_S = 60.0
"""Seconds without a receiver after which it ends; who has not proved the token is none."""
PIECE = 1 << 20
"""Bytes that are read at a time for TLS; without it the kernel sends the file itself."""
WRITER_GONE_S = 10.0
"""Seconds without a writer of the model after which what is not there is not waited for."""
LARGEST_PART = 64 << 20
"""Bytes of one request."""


@dataclass
class BlobServer:
    """A sender.

    Attributes:
        token: which receivers must know.
        tls: None: the bytes are sent as they are.
        follow: a blob that is not there yet will come; what has come of it is sent.
        limit_s: seconds after which it ends in any case.
        bound: addresses that it listens on, once `run` has begun.
        sent: bytes of blobs.
    """

    cache: HubCache
    manifest: Manifest
    token: str = field(repr=False)
    tls: ssl.SSLContext | None = None
    follow: bool = False
    idle_s: float = IDLE_S
    limit_s: float = 24 * 3600.0
    bound: list[tuple[str, int]] = field(default_factory=list)
    sent: int = 0
    ready: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)
    _unproved: unproved.Unproved = field(default_factory=unproved.Unproved, repr=False)
    _streams: int = 0
    _last: float = 0.0
    _last_written: float = field(default_factory=time.monotonic)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def run(
        self, addresses: Sequence[tuple[str, int]], spare: Sequence[tuple[str, int]] = ()
    ) -> None:
        """Listen on these addresses only, until the receiver leaves or none comes for a while.

        Args:
            addresses: host and port; port 0 for a free one.
            spare: the same, but one that is not this node's own is left out: what a user calls a
                node may be the address of a router in front of it.

        Raises:
            ResourceError: an address is not one of this node, or its port is taken.
        """
        with ExitStack() as stack, selectors.DefaultSelector() as selector:
            for address in (*addresses, *spare):
                try:
                    listening = stack.enter_context(_listen(*address))
                except ResourceError:
                    if address in addresses:
                        raise
                    continue
                self.bound.append(listening.getsockname()[:2])
                selector.register(listening, selectors.EVENT_READ, listening)
            self._last = time.monotonic()
            until = self._last + self.limit_s
            self.ready.set()
            while not self.ended.is_set() and time.monotonic() < until and not self._is_idle():
                for key, _ in selector.select(timeout=0.2):
                    with suppress(OSError):  # the one who connected is gone again
                        self._accept(key.data)
                self._unproved.cut_late()

    def _is_idle(self) -> bool:
        with self._lock:
            return not self._streams and time.monotonic() - self._last > self.idle_s

    def _accept(self, listening: socket.socket) -> None:
        stream, (host, *_) = listening.accept()
        try:
            wire.fast(stream)
            if self.tls is not None:
                stream = self.tls.wrap_socket(
                    stream, server_side=True, do_handshake_on_connect=False
                )
        except OSError:
            stream.close()
            raise
        crowded = self._unproved.add(stream, host)
        threading.Thread(target=self._client, args=(stream,), daemon=True).start()
        if crowded:
            self.ended.wait(unproved.PACE_S)

    def _client(self, stream: socket.socket) -> None:
        """Serve one stream until the receiver closes it; it may leave at any time."""
        # A stranger or a receiver that is gone must not end the others.
        with suppress(OSError, EOFError, wire.WireError), stream:
            try:
                if isinstance(stream, ssl.SSLSocket):
                    stream.do_handshake()
                wire.greet_as_sender(stream, self.token)
            finally:
                in_time = self._unproved.take_out(stream)
            if in_time and self._has_place():
                try:
                    self._serve(stream)
                finally:
                    with self._lock:
                        self._streams -= 1
                        self._last = time.monotonic()

    def _has_place(self) -> bool:
        """Take a place for a stream that is proved, if there is one."""
        with self._lock:
            if self._streams >= MOST_STREAMS:
                return False
            self._streams += 1
            return True

    def _serve(self, stream: socket.socket) -> None:
        while not self.ended.is_set():
            wire.patience(stream, self.idle_s)
            asked = wire.receive(stream)
            if asked.get("done") is True:
                self.ended.set()
                return
            wire.patience(stream, wire.STALLED_S)
            self._answer(stream, asked)

    def _answer(self, stream: socket.socket, asked: dict[str, object]) -> None:
        file = self.manifest.blobs.get(str(asked.get("blob", "")))
        begin, end = asked.get("begin"), asked.get("end")
        if file is None or not isinstance(begin, int) or not isinstance(end, int):
            raise wire.WireError("something is asked for that is not of this model")
        if not 0 <= begin < end <= file.size or end - begin > LARGEST_PART:
            raise wire.WireError("a part is asked for that is not there")
        try:
            handle = self._open(file, end)
        except OSError as error:
            wire.send(stream, {"error": f"{file.path}: {error.strerror}"})
            return
        if handle is None:
            wire.send(stream, {"later": True})
            return
        try:
            wire.send(stream, {"bytes": end - begin})
            self._send(stream, handle, begin, end)
        finally:
            os.close(handle)

    def _open(self, file: StoredFile, end: int) -> int | None:
        """Open a blob; None where it is not there yet up to `end`, and will be.

        Raises:
            OSError: it is not there, or not what it was.
        """
        try:
            return self.cache.open(self.manifest.repository, file)
        except FileNotFoundError:
            if self.follow:
                return self._begun(file, end)
            raise

    def _begun(self, file: StoredFile, end: int) -> int | None:
        """Open a half file that has come far enough: it is written in order (arriving, fetching).

        Raises:
            OSError: nobody writes it any more.
        """
        repository = self.manifest.repository
        with suppress(FileNotFoundError):
            handle = self.cache.files.open(self.cache.incomplete(repository, file.blob))
            about = os.fstat(handle)
            if is_own(about) and end <= about.st_size <= file.size:
                return handle
            os.close(handle)
        if is_locked(self.cache, repository):
            self._last_written = time.monotonic()
        elif time.monotonic() - self._last_written > WRITER_GONE_S:
            raise OSError(0, "its download there has ended without it")
        return None

    def _send(self, stream: socket.socket, handle: int, begin: int, end: int) -> None:
        at = begin
        while at < end:
            if isinstance(stream, ssl.SSLSocket):
                piece = os.pread(handle, min(PIECE, end - at), at)
                stream.sendall(piece)
                taken = len(piece)
            else:
                taken = os.sendfile(stream.fileno(), handle, at, end - at)
            if not taken:
                raise EOFError("the file became shorter")
            at += taken
        with self._lock:
            self.sent += end - begin


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((host, port))
        listening.listen(MOST_STREAMS)
        listening.setblocking(False)
    except OSError as error:
        listening.close()
        raise ResourceError(
            f"nothing can be sent from {host} port {port}: {error.strerror}",
            "another copy may be running; `spark-cluster facts` shows the node's addresses",
        ) from error
    return listening
