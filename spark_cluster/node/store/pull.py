"""Pull a revision of a model from the hub into the hub cache.

A program, run with the Python of the hub library's environment (`huggingface_hub` with `hf_xet`)
in a unit of its own. The request comes as JSON on standard input, the token with it: it is in no
argument list, environment or file. Progress goes to standard output; the last line is the result,
JSON too.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spark_cluster.node import durable
from spark_cluster.node.faults import explain
from spark_cluster.node.store.fetching import Fetcher, Progress
from spark_cluster.node.store.hub_cache import (
    Repository,
    check_revision,
    folder_name,
    manifest_path,
)
from spark_cluster.node.store.hub_library import HubLibrary, Wanted
from spark_cluster.node.store.hub_problems import HubProblem
from spark_cluster.node.store.manifest import (
    BadManifest,
    Manifest,
    StoredFile,
)

FILES_AT_A_TIME = 8
OTHER_PULL_S = 24 * 3600.0
"""Longest wait for another pull of the repository, seconds."""


def main() -> int:
    """Do what standard input asks for, and print the result; return the exit status."""
    wanted = Wanted(**json.load(sys.stdin))
    try:
        check_revision(wanted.revision)
        result = _Pull(wanted).run()
    except HubProblem as error:
        result = {"error": error.message, "hint": error.hint, "kind": error.kind}
    except BadManifest as error:
        result = {"error": error.message, "hint": "the hub's description cannot be used"}
    except OSError as error:
        result = {"error": f"pull of {wanted.repository}: {explain(error)}", "hint": ""}
    _print(json.dumps(result))
    return 1 if "error" in result else 0


def _print(line: str) -> None:
    print(line, flush=True)


class _Pull:
    """One pull of one revision."""

    def __init__(self, wanted: Wanted) -> None:
        self.wanted = wanted
        self.repository = Repository(Path(wanted.cache), wanted.repository)
        self.library = HubLibrary(wanted)

    def run(self) -> dict[str, Any]:
        manifest = self.library.manifest()
        if self.wanted.preview:
            return self._result(manifest, self._missing(manifest))
        lock = Path(self.wanted.ours) / "locks" / folder_name(self.wanted.repository)
        with _alone(lock, self.wanted.repository):
            durable.make_folder(self.repository.blobs, 0o755)
            path = manifest_path(Path(self.wanted.ours), manifest)
            durable.make_folder(path.parent)
            durable.write_file(path, json.dumps(manifest.document()).encode())
            missing = self._missing(manifest)
            self._must_have_room(manifest, missing)
            came = self._fetch(manifest, missing)
            self._link(manifest)
            return {**self._result(manifest, []), "came": came}

    def _result(self, manifest: Manifest, missing: list[StoredFile]) -> dict[str, Any]:
        folder = next(p for p in (self.repository.hub, *self.repository.hub.parents) if p.is_dir())
        return {
            "commit": manifest.commit,
            "size": manifest.size,
            "missing": sum(file.size - self._half(file) for file in missing),
            "free": shutil.disk_usage(folder).free,
            "unchecked": sum(not file.algorithm for file in manifest.files),
        }

    def _missing(self, manifest: Manifest) -> list[StoredFile]:
        return [file for file in manifest.blobs() if not self._has(file)]

    def _has(self, file: StoredFile) -> bool:
        """Return whether a blob of the right size is there; `models verify` reads its bytes."""
        try:
            return self.repository.blob(file.blob).stat().st_size == file.size
        except OSError:
            return False

    def _half(self, file: StoredFile) -> int:
        """Return the bytes of a half file that a pull goes on with."""
        try:
            size = self.repository.incomplete(file.blob).lstat().st_size
        except OSError:
            return 0
        return size if size <= file.size else 0

    def _must_have_room(self, manifest: Manifest, missing: list[StoredFile]) -> None:
        needed_bytes = sum(file.size - self._half(file) for file in missing)
        free = shutil.disk_usage(self.repository.blobs).free
        if needed_bytes and needed_bytes + self.wanted.room_left > free:
            raise HubProblem(
                "space",
                f"{manifest.name} needs {needed_bytes / 1e9:.1f} GB more below "
                f"{self.repository.hub}, and {self.wanted.room_left / 1e9:.1f} GB that stay free; "
                f"{free / 1e9:.1f} GB are free",
                "spark-cluster models prune shows what can be removed",
            )

    def _fetch(self, manifest: Manifest, missing: list[StoredFile]) -> int:
        """Fetch blobs, several at a time; return the bytes that came."""
        half = sum(self._half(file) for file in missing)
        have = manifest.size - sum(file.size for file in missing) + half
        progress = Progress(manifest.name, manifest.size, have, _print)
        stopped = threading.Event()
        fetcher = Fetcher(
            manifest.repository,
            self.library,
            progress.add,
            stopped,
            with_token=bool(self.wanted.token),
            tries=self.wanted.tries,
        )

        def one(file: StoredFile) -> None:
            if stopped.is_set():
                return
            blob = self.repository.blob(file.blob)
            try:
                fetcher.fetch(file, self.repository.incomplete(file.blob), blob)
            except BaseException:
                stopped.set()
                raise

        with ThreadPoolExecutor(FILES_AT_A_TIME) as pool:
            jobs = [pool.submit(one, file) for file in missing]
        for job in jobs:
            job.result()
        return progress.came

    def _link(self, manifest: Manifest) -> None:
        """Make the links of the snapshot, and then the ref, each on the disk before the next."""
        folders = set()
        for file in manifest.files:
            link = self.repository.link(manifest.commit, file.path)
            durable.make_folder(link.parent, 0o755)
            target = os.path.relpath(self.repository.blob(file.blob), link.parent)
            if not link.is_symlink() or str(link.readlink()) != target:
                staged = link.with_name(f".{link.name[:200]}.new")
                staged.unlink(missing_ok=True)
                staged.symlink_to(target)
                staged.replace(link)
                folders.add(link.parent)
        for folder in folders:
            durable.sync_folder(folder)
        if self.wanted.revision != manifest.commit:
            ref = self.repository.ref(self.wanted.revision)
            durable.make_folder(ref.parent, 0o755)
            durable.write_file(ref, manifest.commit.encode(), 0o644)


@contextmanager
def _alone(lock: Path, repository: str) -> Iterator[None]:
    """Hold the lock of a repository; another pull of it is waited for."""
    durable.make_folder(lock.parent)
    handle = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
    until, told = time.monotonic() + OTHER_PULL_S, False
    try:
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > until:
                    raise HubProblem(
                        "lock", f"another pull of {repository} runs for more than a day"
                    ) from None
            if not told:
                _print(f"{repository}: waiting for another pull of it on this node")
                told = True
            time.sleep(0.2)
        yield
    finally:
        os.close(handle)


if __name__ == "__main__":
    sys.exit(main())
