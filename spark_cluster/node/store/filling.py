"""Filling a cache with the files of a revision, from the hub or from another node.

Several threads bring a file at a time each, the largest ones first. What comes is hashed as it
arrives and gets its name afterwards, and what was cut is gone on with. A `Source` says how bytes
come, and which failures pass.
"""

from __future__ import annotations

import errno
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from spark_cluster.node.store.hub_cache import HalfBlob, HubCache
from spark_cluster.node.store.manifest import KEPT_FREE, Manifest, StoredFile
from spark_cluster.node.store.verify import ByteProgress, make_own
from spark_cluster.node.values import ResourceError

NEXT_S = 0.1
"""Seconds in which each file that the source does not have yet is asked for once."""


class Later(Exception):
    """The source does not have the file yet."""


class WrongSize(Exception):
    """More or fewer bytes came than the file has."""


class Source:
    """Where the files of a revision come from; its methods are called from several threads."""

    def content(self, file: StoredFile, begin: int) -> Iterator[bytes | memoryview]:
        """Yield the bytes of a file from a place on. Raises Later, or what `pause` judges."""
        raise NotImplementedError

    def pause(self, error: Exception, failures: int) -> float:
        """Return the seconds to wait after a failure that may pass. Raises what it means if not.

        Args:
            failures: how many times in a row the file failed without a byte more.
        """
        raise NotImplementedError

    def wrong(self, file: StoredFile) -> ResourceError:
        """Return the error for a file whose content was twice not what its hash says."""
        raise NotImplementedError

    def alive(self, _size: int = 0) -> None:
        """Take note that this side was at work, or that bytes came."""

    def close(self) -> None:
        """End all that is waited for."""


@dataclass
class Filling:
    """The filling of a cache with what it lacks of a revision.

    Attributes:
        workers: threads.
        done: what is said of the bytes that came: "here", "from spark1".
        kept_free: bytes that stay free on the disk.
        progress: of the bytes.
    """

    cache: HubCache
    manifest: Manifest
    source: Source
    workers: int
    done: str = "here"
    kept_free: int = KEPT_FREE
    progress: ByteProgress = field(default_factory=lambda: ByteProgress(0))
    _files: deque[StoredFile] = field(default_factory=deque)
    _stopped: threading.Event = field(default_factory=threading.Event)
    _failure: Exception | None = None

    def run(self, revision: str = "") -> dict[str, int]:
        """Bring what is missing, and make the revision's links; the caller is `alone`.

        Args:
            revision: the branch or tag that gets the commit at the end.

        Returns:
            The bytes that came (`moved`), and those that were there (`kept`).

        Raises:
            ResourceError: no space, what the source refuses, or a content that is not right.
            OSError: it cannot be written.
        """
        missing = make_own(self.cache, self.manifest)
        kept = self.manifest.size - missing.size
        if missing.blobs:
            self._must_fit(missing.size)
            self.cache.files.make(self.cache.blobs(self.manifest.repository))
            self.progress = ByteProgress(self.manifest.size, self.done, kept)
            self._files.extend(sorted(missing.blobs, key=lambda file: -file.size))
            with ThreadPoolExecutor(self.workers) as pool:
                for _ in range(self.workers):
                    pool.submit(self._work)
            if self._failure is not None:
                raise self._failure
        self.cache.publish(self.manifest, revision)
        return {"moved": self.progress.read, "kept": kept}

    def _must_fit(self, size: int) -> None:
        free = self.cache.files.free()
        if size and free < size + self.kept_free:
            raise ResourceError(
                f"{self.manifest.repository} needs {size / 1e9:.1f} GB more below "
                f"{self.cache.root}, and {self.kept_free / 1e9:.1f} GB that stay free; "
                f"{free / 1e9:.1f} GB are free",
                "`spark-cluster models prune` shows what can be removed",
            )

    def _work(self) -> None:
        """Bring files until none is left to begin; the first error stops all threads."""
        try:
            while self._files and not self._stopped.is_set():
                file = self._files.popleft()
                if not (self._is_brought(file) or self._is_brought(file)):
                    raise self.source.wrong(file)
        except IndexError:  # another thread has taken the last one
            return
        except Exception as error:  # noqa: BLE001  (`run` raises it)
            self._failure = self._failure or _explained(error)
            self._stopped.set()
            self.source.close()

    def _is_brought(self, file: StoredFile) -> bool:
        """Bring a file, or leave it for later; False where its content was wrong, and is gone."""
        failures = 0
        with self.cache.half(self.manifest.repository, file, self.source.alive) as half:
            while half.size < file.size:
                begun = half.size
                try:
                    self._add(half, file)
                except Later:
                    self._files.append(file)
                    self._stopped.wait(NEXT_S / len(self._files))
                    return True
                except Exception as error:  # noqa: BLE001  (the source judges it)
                    failures = 1 if half.size > begun else failures + 1
                    if self._stopped.wait(self.source.pause(error, failures)):
                        return True
            sound = half.settle()
        self.source.alive()
        return sound

    def _add(self, half: HalfBlob, file: StoredFile) -> None:
        """Add what comes to a half file. Raises what its source does, or WrongSize."""
        for piece in self.source.content(file, half.size):
            if half.size + len(piece) > file.size:
                raise WrongSize(f"more than the {file.size} bytes of {file.path} come")
            half.add(piece)
            self.progress.add(len(piece))
            self.source.alive(len(piece))
        if half.size < file.size:
            raise WrongSize(f"fewer than the {file.size} bytes of {file.path} come")


def _explained(error: Exception) -> Exception:
    """Return an error; that of a full disk with what can be done."""
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        text = f"{error.filename or 'a file of the model'}: {error.strerror}"
        return ResourceError(text, "make room; the next run resumes where this one ended")
    return error
