"""What a receiver still has to ask for: the files that are lacking, and those on their way."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Protocol

from spark_cluster.node.store.arriving import Arriving, Memory, Part
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.manifest import Manifest, StoredFile
from spark_cluster.node.values import ResourceError

OPEN_FILES = 4
"""Files that arrive at a time: the hash of one is computed by one core."""
MOST_OPEN = 64
"""Files that are open while the sender has them not yet."""
LATER_S = 0.2
"""Seconds after which a file is asked for again that the sender does not have yet."""
SILENT_S = 60.0
"""Seconds without a byte from any stream after which the copy has failed."""
TRIES = 2
"""Times that a file is fetched whose content is not what its hash says."""


class Receiver(Protocol):
    """What is known of a receiver here; see `blob_client.BlobClient`."""

    cache: HubCache
    manifest: Manifest
    sender: str
    patience_s: float
    silent_s: float
    moved: int


class Work:
    """The files to fetch, and those that are on their way."""

    def __init__(self, client: Receiver, blobs: Sequence[StoredFile]) -> None:
        self.client = client
        self.ended = threading.Event()
        self.failure: ResourceError | None = None
        self.said = ""
        """What went wrong last, on a stream."""
        self.memory = Memory()
        self._lock = threading.Lock()
        self._left = list(reversed(blobs))
        self._open: list[Arriving] = []
        self._at_work = 0  # files that are opened or synced just now
        self._tries: dict[str, int] = {}
        self._later: dict[str, float] = {}
        self._last_byte = self._last_come = time.monotonic()

    def take(self) -> tuple[Arriving, Part] | None:
        """Return a part to ask for, of the file of which the fewest are asked for in turn."""
        with self._lock:
            now = time.monotonic()
            for _ in range(len(self._open)):
                arriving = self._open.pop(0)
                self._open.append(arriving)
                if self._later.get(arriving.file.blob, 0.0) > now:
                    continue
                part = arriving.take()
                if part is not None:
                    return arriving, part
            file = self._next_file(now)
        return self._begin(file) if file else None

    def _next_file(self, now: float) -> StoredFile | None:
        """The next file to begin, while few are on their way; the lock is held."""
        busy = [a for a in self._open if self._later.get(a.file.blob, 0.0) <= now]
        room_for_more = len(busy) + self._at_work < OPEN_FILES and len(self._open) < MOST_OPEN
        if not self._left or not room_for_more:
            return None
        self._at_work += 1
        return self._left.pop()

    def _begin(self, file: StoredFile) -> tuple[Arriving, Part] | None:
        """Open a file, which reads what an earlier run has left of it, without the lock."""
        arriving = Arriving(self.client.cache, self.client.manifest, file, self.memory)
        part = arriving.take()
        with self._lock:
            self._at_work -= 1
            self._last_byte = time.monotonic()
            self._open.append(arriving)
        if part is not None:
            return arriving, part
        self._finish(arriving)  # nothing of it is lacking but its name
        return None

    def put(self, arriving: Arriving, part: Part, data: memoryview) -> None:
        """A part has come."""
        whole = arriving.put(part, data)
        with self._lock:
            self._last_byte = self._last_come = time.monotonic()
            self.client.moved += part.end - part.begin
        if whole:
            self._finish(arriving)

    def _finish(self, arriving: Arriving) -> None:
        """Give a whole file its name; syncing it takes long, so the lock is not held meanwhile."""
        with self._lock:
            if arriving not in self._open:  # another stream was the first to see it whole
                return
            self._open.remove(arriving)
            self._at_work += 1
        sound = arriving.finish()
        with self._lock:
            self._at_work -= 1
            self._last_byte = time.monotonic()
            self._settle(arriving.file, sound=sound)
            if not self._left and not self._open and not self._at_work:
                self.ended.set()

    def _settle(self, file: StoredFile, *, sound: bool) -> None:
        if sound:
            self._last_come = time.monotonic()
            return
        self._tries[file.blob] = self._tries.get(file.blob, 1) + 1
        if self._tries[file.blob] > TRIES:
            self.fail(_wrong(file, self.client))
        else:
            self._left.append(file)

    def later(self, arriving: Arriving, part: Part) -> None:
        """The sender does not have the file yet."""
        arriving.give_back(part)
        with self._lock:
            now = time.monotonic()
            self._later[arriving.file.blob] = now + LATER_S
            self._last_byte = now
            if now - self._last_come > self.client.patience_s:
                self.fail(_too_late(arriving.file, self.client))

    def fail(self, error: ResourceError) -> None:
        """End the copy."""
        self.failure = self.failure or error
        self.ended.set()

    def silent(self) -> float:
        """Seconds since the last byte; 0 while a file is opened or synced."""
        with self._lock:
            return 0.0 if self._at_work else time.monotonic() - self._last_byte

    def must_go_on(self) -> None:
        """End the copy when no byte has come for too long."""
        if self.silent() > self.client.silent_s:
            self.fail(_silent(self.client, self.said))

    def close(self) -> None:
        """Leave half files for a later run."""
        for arriving in self._open:
            arriving.close()


def _wrong(file: StoredFile, client: Receiver) -> ResourceError:
    return ResourceError(
        f"{client.manifest.repository}: {file.path} from {client.sender} is not what its hash "
        f"says, twice",
        f"it is damaged there: spark-cluster --limit {client.sender} models verify",
    )


def _too_late(file: StoredFile, client: Receiver) -> ResourceError:
    return ResourceError(
        f"{client.manifest.repository}: {client.sender} has no {file.path} after "
        f"{client.patience_s:.0f} s",
        "the download there does not go on; run the command again",
    )


def _silent(client: Receiver, said: str) -> ResourceError:
    return ResourceError(
        f"{client.sender} sends nothing for {client.silent_s:.0f} s ({said or 'no answer'})",
        "check that it is up and the link between the nodes; the next copy goes on where this "
        "one ended",
    )
