"""Bring a revision of a model into the hub cache: from any source, and from the hub.

The hub's part is a program, run with the Python of the hub library's environment
(`huggingface_hub` with `hf_xet`) in a unit of its own. The request comes as JSON on standard input,
the token with it: it is in no argument list and no environment. Progress goes to standard output;
the last line is the result, JSON too.

Files come through the library's session by HTTP with ranges. `hf download` is not used: since 1.18
it begins each file anew after a cut, a crash or a reboot (source: hf-no-resume), and it compares
sizes only.
"""

from __future__ import annotations

import errno
import itertools
import json
import shutil
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from http import HTTPStatus
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any

from spark_cluster.node import own_program
from spark_cluster.node.store import hub_problems
from spark_cluster.node.store.hub_cache import HalfBlob, HubCache, alone
from spark_cluster.node.store.hub_problems import HubProblem, problem
from spark_cluster.node.store.manifest import (
    GIT_SHA1,
    KEPT_FREE,
    SHA256,
    UNCHECKED,
    Manifest,
    StoredFile,
)
from spark_cluster.node.store.verify import ByteProgress, make_own
from spark_cluster.node.values import ResourceError

# A cache is filled by several threads, each of which brings a file at a time, the largest ones
# first. What comes is hashed as it arrives and gets its name afterwards, and what was cut is gone
# on with. A source says how bytes come, and which failures pass.

NEXT_S = 0.1
"""Seconds in which each file that the source does not have yet is asked for once."""


class Later(Exception):
    """The source does not have the file yet."""


class WrongSize(Exception):
    """More or fewer bytes came than the file has."""


class FileSource:
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
        """End what is waited for after a failure; without it files that have begun are finished."""


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
    source: FileSource
    workers: int
    done: str = "here"
    kept_free: int = KEPT_FREE
    progress: ByteProgress = field(default_factory=lambda: ByteProgress(0))
    _files: deque[StoredFile] = field(default_factory=deque)
    _wrong: set[str] = field(default_factory=set)
    """Blobs whose content was once not what their hash says."""
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
            while (file := self._next()) is not None and not self._stopped.is_set():
                if self._is_brought(file):
                    continue
                if file.blob in self._wrong:
                    raise self.source.wrong(file)
                self._wrong.add(file.blob)
                self._files.append(file)
        except Exception as error:  # noqa: BLE001  (`run` raises it)
            self._failure = self._failure or _explained(error)
            self._stopped.set()
            self.source.close()

    def _next(self) -> StoredFile | None:
        with suppress(IndexError):  # another thread may have taken the last one
            return self._files.popleft()
        return None

    def _is_brought(self, file: StoredFile) -> bool:
        """Bring a file, or leave it for later; False where its content was wrong, and is gone."""
        failures = 0
        with self.cache.half(self.manifest.repository, file, self.source.alive) as half:
            while half.size < file.size:
                if self._stopped.is_set():  # while what was there was read, or just before
                    return True
                begun = half.size
                try:
                    self._add(half, file)
                except Later:
                    self._files.append(file)
                    self._stopped.wait(NEXT_S / (len(self._files) or 1))
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


# The hub as a source.

FILES_AT_A_TIME = 8
OTHER_PULL_S = 24 * 3600.0
"""Longest wait for another pull of the repository, seconds."""

TRIES = 6
"""Failures in a row, none of which brought a byte, after which a file is given up."""
FIRST_TRIES = 4
"""The same for the first question: pauses of 7 s in all, then a user without a network is told."""
LONGEST_PAUSE_S = 30.0
LONGEST_WAIT_S = 300.0
"""Seconds; a hub that asks for more with a 429 ends the pull with its words."""
REQUEST_S = 30.0
"""Longest wait for the next bytes of an answer, seconds."""

LARGEST_BY_HTTP = 50_000_000_000
"""Bytes; the hub gives larger files by Xet only. Source: huggingface_hub/constants.py,
MAX_HTTP_DOWNLOAD_SIZE."""

OTHER_FORMATS = (
    *(".bin", ".pt", ".pth", ".gguf", ".msgpack", ".h5", ".onnx", ".onnx_data", ".ot"),
    *(".tflite", ".mlmodel", ".ckpt", ".bin.index.json", ".msgpack.index.json", ".h5.index.json"),
)
"""Endings of files that hold the weights again where a repository has safetensors."""
OTHER_FOLDERS = ("original", "onnx", "openvino", "coreml", "metal")
"""Folders at the top of a repository with the weights in another format, with their own indexes."""


@dataclass(frozen=True)
class DownloadRequest:
    """The request.

    Args:
        repository: ORG/NAME.
        revision: branch, tag or commit.
        cache: folder of the hub cache.
        ours: folder of the manifests.
        token: of the hub; "" without one.
        endpoint: address of a mirror; "" for the hub itself.
        all_files: also those that hold the same weights in another format.
        preview: fetch nothing; say what would be.
        room_left: bytes that stay free.
        tries: requests in a row that may fail, each after a longer pause than the one before.
    """

    repository: str
    revision: str
    cache: str
    ours: str
    token: str = ""
    endpoint: str = ""
    all_files: bool = False
    preview: bool = False
    room_left: int = KEPT_FREE
    tries: int = TRIES


def main(*_labels: str) -> None:
    """Do what standard input asks for, and print the result, or `error` and `hint`.

    The words of its command line only say what it does.
    """
    wanted = DownloadRequest(**json.load(sys.stdin))
    own_program.print_answer(lambda: Download(wanted, HubFiles(wanted)).run())


def _print(line: str) -> None:
    print(line, flush=True)


def needed(paths: Iterable[str]) -> list[str]:
    """Return the files to fetch, in the order given: each weight in one format.

    Where safetensors are at the top of the repository, the same weights in other formats are left
    out, with the folders that hold such. Configuration, tokenizers, code and indexes are kept. A
    repository without safetensors is taken whole.
    """
    known = list(paths)
    if not any(path.endswith(".safetensors") and "/" not in path for path in known):
        return known
    return [path for path in known if not _again(path)]


def _again(path: str) -> bool:
    """Return whether a file holds weights that the safetensors hold."""
    parts = PurePosixPath(path).parts
    in_other = len(parts) > 1 and parts[0].lower() in OTHER_FOLDERS
    return in_other or path.lower().endswith(OTHER_FORMATS)


class Refusal(Exception):
    """An answer without a file; its headers say why (`hub_problems.of_library`)."""

    def __init__(self, response: Any) -> None:
        super().__init__(response.status_code)
        self.response = response


class HubFiles:
    """The hub as `huggingface_hub` reaches it; nothing else on a node imports the library."""

    def __init__(self, wanted: DownloadRequest) -> None:
        self._wanted = wanted
        self._library = import_module("huggingface_hub")
        self._utils = import_module("huggingface_hub.utils")
        self._utils.logging.set_verbosity_error()
        self._utils.disable_progress_bars()
        self._access: dict[str, Any] = {
            "token": wanted.token or False,
            "endpoint": wanted.endpoint or None,
        }
        self._commit = ""

    def manifest(self) -> Manifest:
        """Ask for the files of the revision."""
        info = self._library.HfApi(**self._access).model_info(
            self._wanted.repository,
            revision=self._wanted.revision,
            files_metadata=True,
            timeout=REQUEST_S,
        )
        self._commit = info.sha
        files = {sibling.rfilename: sibling for sibling in info.siblings or ()}
        names = list(files) if self._wanted.all_files else needed(files)
        listed = sorted(self._stored(files[name]) for name in names)
        return Manifest(self._wanted.repository, info.sha, tuple(listed))

    def _stored(self, sibling: Any) -> StoredFile:
        """A file as the description has it; a mirror that leaves the hash out is asked for it."""
        if sibling.lfs is not None:
            return StoredFile(sibling.rfilename, sibling.lfs.size, sibling.lfs.sha256, SHA256)
        if sibling.blob_id is not None and sibling.size is not None:
            return StoredFile(sibling.rfilename, sibling.size, sibling.blob_id, GIT_SHA1)
        url = self._url(sibling.rfilename)
        found = self._library.get_hf_file_metadata(url, timeout=REQUEST_S, **self._access)
        return StoredFile(sibling.rfilename, found.size, found.etag, UNCHECKED)

    def _url(self, name: str) -> str:
        url: str = self._library.hf_hub_url(
            self._wanted.repository, name, revision=self._commit, endpoint=self._access["endpoint"]
        )
        return url

    def content(self, file: StoredFile, begin: int) -> Iterator[bytes]:
        """Yield the bytes of a file from a place on, as they come: what waits to be written is lost
        with the process.

        The session takes the token out of a request that is sent on to another host.
        """
        if file.size > LARGEST_BY_HTTP:
            yield from self._by_xet(file, begin)
            return
        headers = self._utils.build_hf_headers(
            token=self._access["token"], library_name="spark-cluster"
        )
        headers |= {"Accept-Encoding": "identity"} | ({"Range": f"bytes={begin}-"} if begin else {})
        session = self._library.get_session()
        with session.stream(
            "GET", self._url(file.path), headers=headers, timeout=REQUEST_S
        ) as response:
            if response.status_code not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
                raise Refusal(response)  # its body, of any length, is not read
            is_part = response.status_code == HTTPStatus.PARTIAL_CONTENT
            known = 0 if is_part else begin  # a hub that gives no parts sends the whole
            for piece in response.iter_bytes():
                if known < len(piece):
                    yield piece[known:]
                known = max(0, known - len(piece))

    def _by_xet(self, file: StoredFile, begin: int) -> Iterator[bytes]:
        """Have a file that does not come by HTTP: it begins anew after a cut."""
        staged = Path(self._wanted.ours) / "xet" / file.blob
        shutil.rmtree(staged, ignore_errors=True)
        try:
            path = self._library.hf_hub_download(
                self._wanted.repository,
                file.path,
                revision=self._commit,
                local_dir=staged,
                **self._access,
            )
            with Path(path).open("rb") as opened:
                opened.seek(begin)
                while piece := opened.read(1 << 20):
                    yield piece
        finally:
            shutil.rmtree(staged, ignore_errors=True)

    def wait_of(self, error: BaseException) -> int:
        """Return the seconds that a hub's refusal asks to wait; 0 without."""
        headers = getattr(getattr(error, "response", None), "headers", {})
        limits = self._utils.parse_ratelimit_headers(headers)
        if limits is not None and limits.remaining == 0:
            return int(limits.reset_in_seconds)
        return int(hub_problems.seconds_of(headers.get("Retry-After", "")) or 0)


class Download(FileSource):
    """The download of one revision: a source of files, which the hub gives.

    Args:
        hub: where they come from.
    """

    def __init__(self, wanted: DownloadRequest, hub: HubFiles) -> None:
        self.wanted = wanted
        self.hub = hub
        self.cache = HubCache(Path(wanted.cache), Path(wanted.ours))
        self._accepted = False

    def run(self) -> dict[str, Any]:
        """Do it, and return the result.

        Raises:
            HubProblem: the hub does not give it.
            ResourceError: another pull of it does not end, or the disk is too small.
            OSError: it cannot be written.
        """
        if self.wanted.preview:
            seen = self._manifest()
            size, free = self.cache.missing(seen).size, self.cache.files.free()
            return {"manifest": seen.document(), "missing": size, "free": free}
        # Whoever sends on what comes sees by the lock that it is to come.
        with alone(self.cache, self.wanted.repository, OTHER_PULL_S, _print):
            manifest = self._manifest()
            self.cache.records.keep(manifest)
            room = self.wanted.room_left
            filling = Filling(self.cache, manifest, self, FILES_AT_A_TIME, kept_free=room)
            came = filling.run(self.wanted.revision)["moved"]
        unchecked = sum(not file.algorithm for file in manifest.files)
        told = {"commit": manifest.commit, "size": manifest.size, "unchecked": unchecked}
        return {**told, "came": came}

    def _manifest(self) -> Manifest:
        """Ask for the files of the revision, again after each failure that may pass."""
        for failures in itertools.count(1):
            try:
                return self.hub.manifest()
            except Exception as error:  # noqa: BLE001  (`pause` raises what does not pass)
                time.sleep(self.pause(error, failures, FIRST_TRIES))
        raise AssertionError

    def content(self, file: StoredFile, begin: int) -> Iterator[bytes]:
        """Ask the hub for a file."""
        for piece in self.hub.content(file, begin):
            self._accepted = True  # the bytes of one file show that the token was good
            yield piece

    def pause(self, error: Exception, failures: int, tries: int = TRIES) -> float:
        """Return the seconds until the hub is asked again; see `FileSource`."""
        found = self._problem(error)
        if not found.passing or failures >= min(tries, self.wanted.tries):
            raise found from error
        wait = self._pause(error) or min(2.0 ** (failures - 1), LONGEST_PAUSE_S)
        _print(f"{found.message}; trying again in {wait:g} s")
        return wait

    def wrong(self, file: StoredFile) -> ResourceError:
        """Say that the hub's own hash is of another content."""
        repository, path = self.wanted.repository, file.path
        return problem("content", repository=repository, path=path, expected=file.blob)

    def _problem(self, error: Exception) -> HubProblem:
        """Return a failure as a problem with the hub. Raises any other."""
        if isinstance(error, HubProblem):
            return error
        if isinstance(error, WrongSize):
            return problem("server", what=str(error))
        status = hub_problems.status_of(error)
        if status in (401, 403) and self.wanted.token and self._accepted:
            return problem("token", repository=self.wanted.repository, status=status)
        found = hub_problems.of_library(error, self.wanted.repository, self.wanted.revision)
        if found is None and not isinstance(error, (OSError, ResourceError)):
            raise problem("server", what=hub_problems.first_line(error)) from error
        if found is None:
            raise error
        return found

    def _pause(self, error: Exception) -> float:
        """Return the seconds that the hub asks to wait, and say so. Raises HubProblem: too many."""
        wait = self.hub.wait_of(error)
        if hub_problems.status_of(error) == HTTPStatus.TOO_MANY_REQUESTS:
            if wait > LONGEST_WAIT_S:
                raise problem("busy", wait=f"{wait} s") from error
            _print(f"the hub refuses more requests for {wait or 'some'} s (429); waiting")
        return min(float(wait), LONGEST_WAIT_S)
