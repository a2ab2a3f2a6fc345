"""A revision of a model as `huggingface_hub` reads it from the hub; no other module of a node does.

The library's own download into the cache does not resume: each attempt has a temporary file of its
own, removed at its end. Its `http_get` does, so files come by HTTP with ranges, several at a time.
Xet, which cannot resume a half file either, is used for files that the hub does not give by HTTP:
those above 50 GB.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from spark_cluster.node.open_files import pieces
from spark_cluster.node.store import hub_problems
from spark_cluster.node.store.fetching import LONGEST_WAIT_S, TRIES, HashedFile, wait_of
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.hub_problems import HubProblem
from spark_cluster.node.store.layout import KEPT_FREE
from spark_cluster.node.store.manifest import GIT_SHA1, SHA256, UNCHECKED, Manifest, StoredFile
from spark_cluster.node.store.needed_files import needed

CHUNK = 64 << 10
"""Bytes after which what came is written: more would be lost when the connection is cut."""
REQUEST_S = 30.0
"""Longest wait for the description of a revision, seconds."""


@dataclass(frozen=True)
class Wanted:
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


def _module(name: str = "") -> Any:
    """Import the library or a part of it, late: it takes a while."""
    return import_module(f"huggingface_hub.{name}" if name else "huggingface_hub")


class HubLibrary:
    """The hub as `huggingface_hub` reaches it."""

    def __init__(self, wanted: Wanted) -> None:
        constants = _module("constants")
        utils = _module("utils")

        self.wanted = wanted
        self.hub = _module()
        self.token: str | bool = wanted.token or False
        self.endpoint = wanted.endpoint or None
        self.commit = ""
        constants.DOWNLOAD_CHUNK_SIZE = CHUNK
        utils.logging.set_verbosity_error()
        utils.disable_progress_bars()
        _limit_waiting()

    def manifest(self) -> Manifest:
        """Ask for the files of the revision."""
        info = self._patiently()
        files = {sibling.rfilename: sibling for sibling in info.siblings or ()}
        names = list(files) if self.wanted.all_files else needed(files)
        self.commit = info.sha
        found = tuple(self._stored(files[name]) for name in names)
        listed = [vars(file) for file in found]
        return Manifest.from_document(
            {"repository": self.wanted.repository, "commit": info.sha, "files": listed}
        )

    def _patiently(self) -> Any:
        """The description of the revision; what may pass is tried again."""
        api = self.hub.HfApi(endpoint=self.endpoint, token=self.token)
        repository, revision = self.wanted.repository, self.wanted.revision
        for attempt in range(self.wanted.tries):
            try:
                return api.model_info(
                    repository, revision=revision, files_metadata=True, timeout=REQUEST_S
                )
            except Exception as error:
                if isinstance(error, HubProblem):
                    raise
                problem = hub_problems.of_library(error, repository, revision)
                if problem is None:
                    raise hub_problems.wrong_answer(hub_problems.first_line(error)) from error
                if not problem.passing or attempt + 1 == self.wanted.tries:
                    raise problem from error
                time.sleep(wait_of(error) or min(2.0**attempt, 8.0))
        raise AssertionError

    def _stored(self, sibling: Any) -> StoredFile:
        """A file as the description has it; a mirror that leaves the hash out is asked for it."""
        if sibling.lfs is not None:
            return StoredFile(sibling.rfilename, sibling.lfs.size, sibling.lfs.sha256, SHA256)
        if sibling.blob_id is not None and sibling.size is not None:
            return StoredFile(sibling.rfilename, sibling.size, sibling.blob_id, GIT_SHA1)
        found = self._metadata(sibling.rfilename)
        return StoredFile(sibling.rfilename, found.size, found.etag, UNCHECKED)

    def _metadata(self, name: str) -> Any:
        url = self.hub.hf_hub_url(
            self.wanted.repository, name, revision=self.commit, endpoint=self.endpoint
        )
        return self.hub.get_hf_file_metadata(
            url, token=self.token, endpoint=self.endpoint, timeout=REQUEST_S
        )

    def send(self, file: StoredFile, target: HashedFile, begin: int) -> None:
        """Write the bytes of a file from a place on to the target."""
        constants, file_download = _module("constants"), _module("file_download")

        found = self._metadata(file.path)
        url = self.hub.hf_hub_url(
            self.wanted.repository, file.path, revision=self.commit, endpoint=self.endpoint
        )
        headers = _module("utils").build_hf_headers(token=self.token, library_name="spark-cluster")
        if file.size > constants.MAX_HTTP_DOWNLOAD_SIZE and found.xet_file_data is not None:
            self._send_by_xet(file, target, found.xet_file_data, headers)
            return
        if not file_download._is_same_or_hub_host(url, found.location):
            headers.pop("authorization", None)
        file_download.http_get(
            found.location,
            target,
            resume_size=begin,
            headers=headers,
            expected_size=file.size,
        )

    def _send_by_xet(
        self, file: StoredFile, target: HashedFile, xet_data: Any, headers: dict[str, str]
    ) -> None:
        """Fetch a file that does not come by HTTP; it is read again for its hash."""
        cache = HubCache(Path(self.wanted.cache))
        path = cache.incomplete(self.wanted.repository, f"{file.blob}.xet")
        cache.files.remove(path)
        handle = cache.files.create(path)
        try:
            _module("file_download").xet_get(
                incomplete_path=Path(f"/proc/self/fd/{handle}"),  # the file itself, by no name
                xet_file_data=xet_data,
                headers=headers,
                expected_size=file.size,
            )
            target.seek(0)
            target.truncate()
            for chunk in pieces(handle, file.size + 1, 1 << 20):
                target.write(chunk)
        finally:
            os.close(handle)
            cache.files.remove(path)


def _limit_waiting() -> None:
    """Show when the hub asks for a pause, and end the pull where it is too long."""
    _http = _module("utils._http")

    def look(response: Any) -> None:
        if response.status_code != hub_problems.TOO_MANY:
            return
        limits = _http.parse_ratelimit_headers(response.headers)
        wait = _http._parse_retry_after(response.headers)
        if limits is not None and limits.remaining == 0:
            wait = limits.reset_in_seconds
        if wait is not None and wait > LONGEST_WAIT_S:
            raise hub_problems.busy(str(wait))
        print(f"the hub refuses more requests for {wait or 'some'} s (429); waiting", flush=True)

    def factory() -> Any:
        client = _http.default_client_factory()
        hooks = client.event_hooks
        client.event_hooks = {**hooks, "response": [*hooks.get("response", []), look]}
        return client

    _http.set_client_factory(factory)
