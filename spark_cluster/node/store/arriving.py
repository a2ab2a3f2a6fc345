"""A file that arrives in parts over several streams: written and hashed in order, once."""

from __future__ import annotations

import heapq
import os
import threading
from dataclasses import dataclass

from spark_cluster.node.open_files import pieces
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.manifest import Manifest, StoredFile

PART = 8 << 20
"""Bytes of one request: small enough for a resume, large enough that asking costs nothing."""
AHEAD = 8
"""Parts that may wait in memory for the one before them."""
PIECE = 256 << 10
"""Bytes that are hashed and written at a time: few enough to be in the core's cache still when they
are written. One write of 8 MiB took two to nine times the CPU time of these (ext4, a virtual
machine), because the kernel takes larger pages for it, which are fresh memory more often."""


@dataclass(frozen=True, order=True)
class Part:
    """Bytes of a file, from `begin` up to `end`."""

    begin: int
    end: int


class Memory:
    """Memory for parts, used again and again: fresh pages cost CPU time for each part."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spare: list[bytearray] = []

    def take(self, part: Part) -> memoryview:
        """Return memory for a part."""
        with self._lock:
            memory = self._spare.pop() if self._spare else bytearray(PART)
        return memoryview(memory)[: part.end - part.begin]

    def give_back(self, data: memoryview) -> None:
        """The part is written."""
        if isinstance(data.obj, bytearray) and len(data.obj) == PART:
            with self._lock:
                self._spare.append(data.obj)


class Arriving:
    """A file on its way into the cache.

    What is on the disk is always the beginning of the file, so that its length says where a later
    run (or the hub's own library) goes on. The hash of what an earlier run has left is computed
    from the disk.
    """

    def __init__(
        self,
        cache: HubCache,
        manifest: Manifest,
        file: StoredFile,
        memory: Memory | None = None,
    ) -> None:
        self.file = file
        self._files = cache.files
        self.path = cache.incomplete(manifest.repository, file.blob)
        self.blob = cache.blob(manifest.repository, file.blob)
        self._lock = threading.Lock()
        self._parts: list[Part] = []
        self._waiting: dict[int, memoryview] = {}
        self._memory = memory or Memory()
        self._hasher = file.hasher()
        self._handle = cache.files.resume(self.path)
        self._at = self._resume()
        self._next = self._at

    def _resume(self) -> int:
        """Hash what is there; return its length. What is too long is begun again."""
        length = os.fstat(self._handle).st_size
        if length > self.file.size:
            os.ftruncate(self._handle, 0)
            return 0
        at = 0
        for piece in pieces(self._handle, length, PIECE):
            self._hasher.update(piece)
            at += len(piece)
        return at

    @property
    def whole(self) -> bool:
        """True if every byte is on its way to the disk."""
        return self._at == self.file.size

    def take(self) -> Part | None:
        """Return a part to ask for; None while none may be."""
        with self._lock:
            if self._parts:
                return heapq.heappop(self._parts)
            if self._next >= self.file.size or self._next - self._at >= AHEAD * PART:
                return None
            begin = self._next
            self._next = min(begin + PART, self.file.size)
            return Part(begin, self._next)

    def give_back(self, part: Part) -> None:
        """A part did not come; somebody else is to ask for it."""
        with self._lock:
            heapq.heappush(self._parts, part)

    def put(self, part: Part, data: memoryview) -> bool:
        """Write a part when all before it is written; return whether the file is whole.

        Args:
            data: what `Memory.take` gave; it is used again for another part.

        Raises:
            OSError: the disk is full or broken.
        """
        with self._lock:
            self._waiting[part.begin] = data
            while (ready := self._waiting.pop(self._at, None)) is not None:
                self._write(ready)
            return self.whole

    def _write(self, data: memoryview) -> None:
        for begin in range(0, len(data), PIECE):
            left = data[begin : begin + PIECE]
            self._hasher.update(left)
            while left:
                taken = os.pwrite(self._handle, left, self._at)
                self._at += taken
                left = left[taken:]
        self._memory.give_back(data)

    def finish(self) -> bool:
        """Give the whole file its name; return False, and throw it away, if its hash is wrong."""
        with self._lock:
            handle, self._handle = self._handle, -1
            try:
                if not self._hasher.fits():
                    self._files.remove(self.path)
                    return False
                self._files.settle(handle, self.path, self.blob)
                return True
            finally:
                os.close(handle)

    def close(self) -> None:
        """Leave the file as far as it has come, for a later run."""
        with self._lock:
            if self._handle >= 0:
                os.close(self._handle)
                self._handle = -1
