"""Pull a revision of a model from the hub into the hub cache.

A program, run with the Python of the hub library's environment (`huggingface_hub` with `hf_xet`)
in a unit of its own. The request comes as JSON on standard input, the token with it: it is in no
argument list and no environment. Progress goes to standard output; the last line is the result,
JSON too.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from spark_cluster.node.faults import explain
from spark_cluster.node.store.adopt import make_own
from spark_cluster.node.store.fetching import Fetcher, Progress
from spark_cluster.node.store.hub_cache import HubCache, Lacking, alone
from spark_cluster.node.store.hub_library import HubLibrary, Wanted
from spark_cluster.node.store.hub_problems import HubProblem
from spark_cluster.node.store.manifest import Manifest, StoredFile
from spark_cluster.node.store.records import Records
from spark_cluster.node.values import ResourceError

FILES_AT_A_TIME = 8
OTHER_PULL_S = 24 * 3600.0
"""Longest wait for another pull of the repository, seconds."""


def main(*_labels: str) -> int:
    """Do what standard input asks for, and print the result; return the exit status.

    The words of its command line only say what it does.
    """
    wanted = Wanted(**json.load(sys.stdin))
    try:
        result = _Pull(wanted).run()
    except HubProblem as error:
        result = {"error": error.message, "hint": error.hint, "kind": error.kind}
    except ResourceError as error:
        result = {"error": error.message, "hint": error.hint}
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
        self.cache = HubCache(Path(wanted.cache), Path(wanted.ours))
        self.library = HubLibrary(wanted)

    def run(self) -> dict[str, Any]:
        manifest = self.library.manifest()
        if self.wanted.preview:
            return self._result(manifest, self.cache.lacking(manifest))
        with _alone(self.cache, manifest.repository):
            self.cache.files.make(self.cache.blobs(manifest.repository))
            Records(Path(self.wanted.ours)).keep(manifest)
            lacking = self.cache.lacking(manifest)
            if lacking.foreign:
                make_own(self.cache, manifest, lacking.foreign)
                lacking = self.cache.lacking(manifest)
            self._must_have_room(manifest, lacking)
            came = self._fetch(manifest, lacking)
            self.cache.publish(manifest, self.wanted.revision)
            return {**self._result(manifest, self.cache.lacking(manifest)), "came": came}

    def _result(self, manifest: Manifest, lacking: Lacking) -> dict[str, Any]:
        return {
            "commit": manifest.commit,
            "size": manifest.size,
            "missing": lacking.size,
            "free": self.cache.files.free(),
            "unchecked": sum(not file.algorithm for file in manifest.files),
        }

    def _must_have_room(self, manifest: Manifest, lacking: Lacking) -> None:
        free = self.cache.files.free()
        if lacking.size and lacking.size + self.wanted.room_left > free:
            raise HubProblem(
                "space",
                f"{manifest.repository} needs {lacking.size / 1e9:.1f} GB more below "
                f"{self.cache.root}, and {self.wanted.room_left / 1e9:.1f} GB that stay free; "
                f"{free / 1e9:.1f} GB are free",
                "spark-cluster models prune shows what can be removed",
            )

    def _fetch(self, manifest: Manifest, lacking: Lacking) -> int:
        """Fetch blobs, several at a time; return the bytes that came."""
        have = manifest.size - lacking.size
        progress = Progress(manifest.repository, manifest.size, have, _print)
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
            try:
                fetcher.fetch(file, self.cache)
            except BaseException:
                stopped.set()
                raise

        with ThreadPoolExecutor(FILES_AT_A_TIME) as pool:
            jobs = [pool.submit(one, file) for file in lacking.blobs]
        for job in jobs:
            job.result()
        return progress.came


@contextmanager
def _alone(cache: HubCache, repository: str) -> Iterator[None]:
    """Hold the lock of a repository; another pull or copy of it is waited for, and that is said."""
    waiting = f"{repository}: waiting for another pull or copy of it on this node"
    told = threading.Timer(1.0, _print, [waiting])
    told.daemon = True
    told.start()
    try:
        with alone(cache, repository, OTHER_PULL_S):
            told.cancel()
            yield
    finally:
        told.cancel()


if __name__ == "__main__":
    sys.exit(main())
