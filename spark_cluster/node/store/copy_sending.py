"""The sender of a copy: listens on a node's own addresses, and gives receivers what is copied.

It knows a list of files; a receiver names one by its number in the list and never by a path. Each
file is opened beneath the model's folder without following a link (node/beneath.py).
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Sequence

from spark_cluster.node.faults import explain
from spark_cluster.node.store.copy_channel import (
    DATA,
    DONE,
    FAILED,
    LATER,
    Broken,
    Channel,
    Stranger,
    Stream,
    cut,
)
from spark_cluster.node.store.hub_cache import HubCache, is_locked
from spark_cluster.node.store.manifest import Manifest, StoredFile
from spark_cluster.node.values import ResourceError

IDLE_S = 60.0
"""Seconds without a receiver after which it ends; a connection without proof does not count."""
WRITER_GONE_S = 10.0
"""Seconds without a writer of the model after which what is not there is not waited for."""
LIMIT_S = 24 * 3600.0
LOOK_S = 0.2
STRANGERS = 300
"""Connections without proof at a time. One more ends the oldest: a receiver needs milliseconds, and
a stranger only loses its place."""
RECEIVERS = 128
"""Connections with proof at a time."""

Give = Callable[[Stream, int, int], None]
"""Answers a request for a file by its number, from a byte on. It may raise OSError before its first
chunk."""


class Sender:
    """The sender of one copy; it listens once it is made.

    Args:
        addresses: all of them must be this node's own.
        spare: those that are not this node's own are left out: the address by which a user knows a
            node may be that of a router in front of it.

    Raises:
        ResourceError: an address is not this node's own, or its port is taken.
    """

    def __init__(
        self, channel: Channel, addresses: Sequence[str], spare: Sequence[str], give: Give
    ) -> None:
        self.idle_s = IDLE_S
        self._channel, self._give = channel, give
        self._ended = threading.Event()
        self._unproved: dict[socket.socket, None] = {}
        self._proved: set[socket.socket] = set()
        self._last = time.monotonic()
        self._listening = [_listening(address, channel.port) for address in addresses]
        for address in set(spare) - set(addresses):
            with contextlib.suppress(ResourceError):
                self._listening.append(_listening(address, channel.port))

    def run(self) -> None:
        """Serve until a receiver has everything, or none has come for a while."""
        until = time.monotonic() + LIMIT_S
        with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
            for listening in self._listening:
                selector.register(stack.enter_context(listening), selectors.EVENT_READ, listening)
            while not self._ended.is_set() and time.monotonic() < until and not self._is_idle():
                for key, _ in selector.select(LOOK_S):
                    with contextlib.suppress(OSError):  # the other end is gone again
                        self._accept(key.data)
        for connection in (*self._unproved, *self._proved):
            cut(connection)

    def end(self) -> None:
        """Have `run` end."""
        self._ended.set()

    def _is_idle(self) -> bool:
        return not self._proved and time.monotonic() - self._last > self.idle_s

    def _accept(self, listening: socket.socket) -> None:
        connection = self._channel.wrapped(listening.accept()[0])
        if len(self._unproved) >= STRANGERS:
            oldest, *_ = self._unproved
            cut(oldest)
        self._unproved[connection] = None
        threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Answer one connection until its other end closes it."""
        with contextlib.suppress(Broken, Stranger), connection:
            try:
                stream = self._channel.proved(connection)
            finally:
                del self._unproved[connection]
            if len(self._proved) >= RECEIVERS:
                return
            self._proved.add(connection)
            try:
                self._answer(stream)
            finally:
                self._last = time.monotonic()
                self._proved.remove(connection)

    def _answer(self, stream: Stream) -> None:
        while not self._ended.is_set():
            number, begin = stream.requested()
            if number == DONE:
                self.end()
                stream.answer(DATA)
                return
            try:
                self._give(stream, number, begin)
            except OSError as error:
                stream.answer(FAILED, explain(error).encode())


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=RECEIVERS)
    except OSError as error:
        raise ResourceError(
            f"nothing can be sent from {host} port {port}: {error.strerror}",
            "another copy may be running; `spark-cluster facts` shows the node's addresses",
        ) from error
    listening.setblocking(False)
    return listening


class StoredFiles:
    """The files of a manifest, as `Give`. One that is not there yet may still be on its way."""

    def __init__(self, cache: HubCache, manifest: Manifest) -> None:
        self._cache, self._manifest = cache, manifest
        self._files = tuple(manifest.blobs.values())
        self._last_written = time.monotonic()

    def __call__(self, stream: Stream, number: int, begin: int) -> None:
        """Answer with a file from a byte on."""
        if number >= len(self._files) or begin > self._files[number].size:
            raise Broken("something is asked for that is not of this copy")
        file = self._files[number]
        try:
            handle = self._cache.open(self._manifest.repository, file)
        except FileNotFoundError:
            self._must_be_written(file)
            stream.answer(LATER)
            return
        try:
            stream.answer_file(handle, begin, file.size)
        finally:
            os.close(handle)

    def _must_be_written(self, file: StoredFile) -> None:
        """Raise OSError where nobody has written into the repository for a while."""
        if is_locked(self._cache, self._manifest.repository):
            self._last_written = time.monotonic()
        elif time.monotonic() - self._last_written > WRITER_GONE_S:
            raise OSError(0, "its download there has ended without it", file.path)
