"""Fetching one blob of a revision: it resumes, and its hash is computed as the bytes arrive."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import Protocol

from spark_cluster.node.open_files import pieces
from spark_cluster.node.store import hub_problems
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.hub_problems import HubProblem
from spark_cluster.node.store.manifest import Hasher, StoredFile

READ = 1 << 20
"""Bytes that are read at a time of what is there already."""

TRIES = 6
"""Failures in a row, none of which brought a byte, after which a file is given up."""

LONGEST_PAUSE_S = 30.0
LONGEST_WAIT_S = 300.0
"""Seconds; a hub that asks for more with a 429 ends the pull with its words."""
AUTHENTICATION = (401, 403)


class Source(Protocol):
    """Where the bytes of a revision's files come from; pull.py's is the hub's library."""

    def send(self, file: StoredFile, target: HashedFile, begin: int) -> None:
        """Write the bytes of a file from a place on to the target.

        Raises:
            Exception: of the library; `hub_problems.of_library` knows most.
        """


class HashedFile:
    """A file that is being filled, whose hash is kept as bytes come in order.

    Args:
        handle: of the half file; it is closed with this.
        file: what it becomes.
        on_bytes: is called with the number of bytes that came.
    """

    def __init__(self, handle: int, file: StoredFile, on_bytes: Callable[[int], None]) -> None:
        self._file = file
        self._on_bytes = on_bytes
        self._raw = os.fdopen(handle, "r+b", 0)
        self.hash: Hasher
        self.size = self.seek(0)
        self._continue()

    def _continue(self) -> None:
        """Hash what a run before this one has brought; longer than the whole, it is thrown away."""
        if os.fstat(self._raw.fileno()).st_size > self._file.size:
            self.truncate()
        for chunk in pieces(self._raw.fileno(), self._file.size, READ):
            self._add(chunk)
        self._raw.seek(self.size)

    def _add(self, data: bytes) -> None:
        self.size += len(data)
        self.hash.update(data)

    def write(self, data: bytes) -> int:
        """Write all of it at the end."""
        view = memoryview(data)
        while view:
            view = view[self._raw.write(view) :]
        self._add(data)
        self._on_bytes(len(data))
        return len(data)

    def tell(self) -> int:
        return self.size

    def seek(self, place: int) -> int:
        """Begin again; the library does that where a server sends the whole instead of a part.

        Raises:
            ValueError: another place than the beginning.
        """
        if place:
            raise ValueError(f"a file is filled in order; {place} is not its beginning")
        self._raw.seek(0)
        self.size, self.hash = 0, self._file.hasher()
        return 0

    def truncate(self) -> None:
        """Forget what comes after this place, which is the beginning."""
        self._raw.truncate(self.size)

    def fileno(self) -> int:
        return self._raw.fileno()

    def close(self) -> None:
        self._raw.close()


class Fetcher:
    """Fetches blobs of one revision.

    Args:
        repository: ORG/NAME.
        source: of the bytes.
        on_bytes: is called with the number of bytes that came.
        stopped: set when another file failed: no more attempts are made.
        with_token: a token goes with the requests.
        tries: failures in a row after which a file is given up.
    """

    def __init__(
        self,
        repository: str,
        source: Source,
        on_bytes: Callable[[int], None],
        stopped: threading.Event,
        *,
        with_token: bool,
        tries: int = TRIES,
    ) -> None:
        self._repository = repository
        self._source = source
        self._on_bytes = on_bytes
        self._stopped = stopped
        self._with_token = with_token
        self._tries = tries
        self._accepted = False

    def fetch(self, file: StoredFile, cache: HubCache) -> None:
        """Have a blob, whole and right, on the disk. A wrong one is fetched once more.

        Raises:
            HubProblem: it cannot be had.
            OSError: it cannot be written.
        """
        half = cache.incomplete(self._repository, file.blob)
        for _ in range(2):
            target = HashedFile(cache.files.resume(half), file, self._came)
            try:
                self._fill(file, target)
                if target.hash.fits():
                    blob = cache.blob(self._repository, file.blob)
                    cache.files.settle(target.fileno(), half, blob)
                    return
            finally:
                target.close()
            cache.files.remove(half)
        raise hub_problems.wrong_content(self._repository, file.path, file.blob)

    def _came(self, count: int) -> None:
        """Count bytes; those of one file show that the token was good, for all of them."""
        self._accepted = True
        self._on_bytes(count)

    def _fill(self, file: StoredFile, target: HashedFile) -> None:
        """Fetch the missing part, again after each failure that may pass."""
        failures = 0
        while target.size < file.size:
            begin = target.size
            try:
                self._source.send(file, target, begin)
                self._accepted = True
            except Exception as error:
                if target.size > begin:  # it went on, so it may again
                    failures = 0
                failures += 1
                problem = self._must_try_again(error, failures)
                pause = wait_of(error) or min(2.0 ** (failures - 1), LONGEST_PAUSE_S)
                if self._stopped.wait(pause):
                    raise problem from error

    def _must_try_again(self, error: Exception, failures: int) -> HubProblem:
        """Return a problem that may pass by waiting, and raise any other."""
        if isinstance(error, HubProblem):
            raise error
        problem = hub_problems.of_library(error, self._repository, "")
        if problem is None:
            raise error
        status = hub_problems.status_of(error)
        if status in AUTHENTICATION and self._with_token and self._accepted:
            raise hub_problems.token_expired(self._repository, status) from error
        if not problem.passing or failures >= self._tries or self._stopped.is_set():
            raise problem from error
        return problem


def wait_of(error: BaseException) -> float:
    """Return the seconds that a hub's refusal asks to wait, 5 min at most; 0 without."""
    headers = getattr(getattr(error, "response", None), "headers", {})
    seconds = hub_problems.seconds_of(headers.get("Retry-After", ""))
    return min(float(seconds or 0), LONGEST_WAIT_S)


class Progress:
    """Prints what has come, at most once a second.

    Args:
        name: of the revision.
        total: bytes to fetch, what is there already included.
        have: bytes that were there at the beginning.
        show: prints a line.
    """

    def __init__(self, name: str, total: int, have: int, show: Callable[[str], None]) -> None:
        self._name, self._total, self._show = name, total, show
        self._have = self._first = have
        self._begun = time.monotonic()
        self._shown = self._begun
        self._lock = threading.Lock()
        self.came = 0

    def add(self, count: int) -> None:
        """Count bytes that came."""
        with self._lock:
            self._have += count
            self.came += count
            now = time.monotonic()
            if now - self._shown >= 1:
                self._shown = now
                self._show(self._line(now))

    def _line(self, now: float) -> str:
        rate = self.came / max(now - self._begun, 1e-3)
        left = max(0, self._total - self._have) / rate if rate else 0
        done = f"{self._have / 1e9:.2f} of {self._total / 1e9:.2f} GB"
        return f"{self._name}: {done}, {rate / 1e6:.1f} MB/s, {_duration(left)} left"


def _duration(seconds: float) -> str:
    """Return `45 s`, `12 min` or `3.4 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
