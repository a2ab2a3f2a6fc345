"""Reading whole models in a process of its own, which a transient unit runs: verify, adopt."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from spark_cluster.node import own_program
from spark_cluster.node.store.adopt import adopt, home_cache, make_own
from spark_cluster.node.store.hub_cache import HubCache, alone
from spark_cluster.node.store.records import Records
from spark_cluster.node.store.revision import manifest_of
from spark_cluster.node.store.verify import verify

EVERY_S = 1.0
"""Seconds between two lines of progress."""


def argv(request: Mapping[str, Any]) -> list[str]:
    """Return the command that does it with this very code.

    Args:
        request: `what` (verify or adopt), `hub`, `ours`, `repository`, `commit`; to adopt
            `home` and `owners` (user ids) of the other cache, and `revision`.
    """
    return own_program.argv(__name__, json.dumps(dict(request), sort_keys=True))


def main(text: str) -> None:
    """Do it; the last line of output is JSON: its result, or `error` and `hint`."""
    own_program.print_answer(lambda: done(json.loads(text)))


def done(request: Mapping[str, Any]) -> dict[str, Any]:
    """Do what is asked and return the result. Raises ResourceError, OSError."""
    ours = Path(request["ours"])
    cache, records = HubCache(Path(request["hub"]), ours), Records(ours)
    repository, commit = str(request["repository"]), str(request["commit"])
    if request["what"] == "adopt":
        other = home_cache(Path(request["home"]), frozenset(map(int, request["owners"])))
        progress = Progress(0)
        revision = str(request.get("revision", ""))
        manifest = adopt(
            other, cache, records, repository, commit, revision=revision, progress=progress.add
        )
        return {"manifest": manifest.document()}
    manifest = manifest_of(cache, records, repository, commit)
    records.keep(manifest)  # what is removed as damaged is still known to belong to it
    foreign = cache.lacking(manifest).foreign
    if foreign:
        with alone(cache, repository):
            make_own(cache, manifest, foreign)
    return asdict(verify(cache, manifest, Progress(manifest.size).add))


class Progress:
    """Lines about bytes that were read, at most one in EVERY_S.

    Args:
        total: bytes; 0 where it is not known.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.read = 0
        self._began = self._shown = time.monotonic()
        self._lock = threading.Lock()

    def add(self, size: int) -> None:
        """Take note of bytes, from any thread."""
        with self._lock:
            self.read += size
            now = time.monotonic()
            if now - self._shown >= EVERY_S:
                self._shown = now
                print(self.line(now - self._began), flush=True)

    def line(self, seconds: float) -> str:
        """Return what is read after so many seconds, at which speed, and the time left."""
        speed = self.read / seconds
        read = f"{self.read / 1e9:.1f}"
        if not self.total:
            return f"{read} GB read, {speed / 1e6:.0f} MB/s"
        left = max(0, self.total - self.read) / speed if speed else 0.0
        total = f"{self.total / 1e9:.1f}"
        return f"{read} of {total} GB read, {speed / 1e6:.0f} MB/s, {left:.0f} s left"
