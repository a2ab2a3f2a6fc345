"""A hub of models for tests and the lab: the real client library downloads from it.

It answers as huggingface.co does, as far as a client that reads models needs it: the description of
a revision with sizes and hashes, its files (large ones after a redirect to another path), HEAD with
ETag and commit, parts of files, and the refusals with their `X-Error-Code`. It never offers Xet, so
the client uses HTTP. Repositories are folders: `ROOT/ORGANISATION/NAME/files`.
"""

from __future__ import annotations

import functools
import json
import re
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

from spark_cluster_lab.hub_files import MAIN, HubFile, Repositories, hub_file

_API = re.compile(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+)(?:/.*)?)?")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
_STORE = re.compile(r"/store/([^/]+/[^/]+)/([^/]+)/(.+)")
CHUNK = 1 << 20


@dataclass
class Conduct:
    """How a repository is answered for, besides as it should be.

    Attributes:
        gated: its files need a token, its description does not.
        private: without a token it does not exist.
        status: of every answer, with `headers`; 0: as it should be.
        times: answers with that status, after which all is as it should be; 0: always.
        files_only: the status is for files, not for descriptions.
        endless: an answer with that status never ends.
        silent: requests are taken and never answered, until the server is closed.
        garbage: the body of every good answer.
        token: that opens what is gated or private.
        expires_after: bytes of files after which the token opens nothing; 0: never.
        bytes_per_s: of each connection; 0: as fast as it goes.
        cut_after: bytes of one answer after which the connection is cut; 0: never.
        cuts: number of connections that are cut.
        no_ranges: files are sent whole, whatever part is asked for.
        wrong: names of files whose content is not what their hash says.
        wrong_times: answers with wrong content; 0: always.
    """

    gated: bool = False
    private: bool = False
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    times: int = 0
    files_only: bool = False
    endless: bool = False
    silent: bool = False
    garbage: bytes | None = None
    token: str = "hf_lab"  # noqa: S105  of this server only
    expires_after: int = 0
    bytes_per_s: float = 0.0
    cut_after: int = 0
    cuts: int = 1
    no_ranges: bool = False
    wrong: frozenset[str] = frozenset()
    wrong_times: int = 0


@dataclass
class LabHub:
    """A hub that serves a folder.

    Attributes:
        conduct: by repository; those not named are answered for as they should be.
        requests: what was asked: method and path.
        sent: bytes of files that were sent, by repository and name.
        spent: how often a limited misconduct has been shown, by repository and what it is.
        store: address of the server that readers of large files are sent on to; this one without.
        with_token: paths that were asked for with a token.
    """

    root: Path
    conduct: dict[str, Conduct] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)
    url: str = ""
    sent: Counter[tuple[str, str]] = field(default_factory=Counter)
    spent: Counter[tuple[str, str]] = field(default_factory=Counter)
    store: str = ""
    with_token: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.repositories = Repositories(self.root)
        self._lock = threading.Lock()

    def commit(self, repository: str, revision: str = MAIN) -> str:
        """The commit of a revision, which follows from its files."""
        return self.repositories.commit(repository, revision)

    def sent_of(self, repository: str) -> int:
        """Bytes of a repository's files that were sent."""
        with self._lock:
            return sum(count for (name, _), count in self.sent.items() if name == repository)

    def count(self, repository: str, name: str, size: int) -> None:
        """Note bytes that were sent."""
        with self._lock:
            self.sent[repository, name] += size

    def spend(self, repository: str, what: str, times: int) -> bool:
        """Return whether a misconduct is still to be shown; 0 times: always."""
        with self._lock:
            self.spent[repository, what] += 1
            return not times or self.spent[repository, what] <= times


@contextmanager
def serve(root: Path, host: str = "127.0.0.1", port: int = 0) -> Iterator[LabHub]:
    """Serve the repositories below a folder, as long as the context lasts.

    Args:
        port: 0: one that is free.
    """
    hub = LabHub(root)
    with _Server((host, port), functools.partial(_Handler, hub)) as server:
        hub.url = f"http://{host}:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield hub
        finally:
            hub.closing.set()
            server.shutdown()
            thread.join()


class _Server(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Report what goes wrong here; a client that leaves in the middle of a file may."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, hub: LabHub, *args: object) -> None:
        self.hub = hub
        super().__init__(*args)  # type: ignore[arg-type]

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def log_message(self, format: str, *args: object) -> None:
        """Keep standard error for what goes wrong."""

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append((self.command, path))
        self.hub.with_token += [path] if self.headers.get("Authorization") else []
        if found := _API.fullmatch(urlsplit(self.path).path):
            repository, what, revision = found.groups()
            revision = unquote(revision or MAIN)
            if self._allowed(repository, revision, described=True):
                self._describe(repository, what or "", revision)
        elif found := _FILE.fullmatch(urlsplit(self.path).path):
            repository, revision, name = found.groups()
            if self._allowed(repository, unquote(revision), described=False):
                self._file(repository, unquote(revision), unquote(name))
        elif found := _STORE.fullmatch(path):
            self._stored(*found.groups())
        else:
            self._refuse(404, "", "Not found")

    def _conduct(self, repository: str) -> Conduct:
        return self.hub.conduct.get(repository, Conduct())

    def _allowed(self, repository: str, revision: str, *, described: bool) -> bool:
        """Return whether the answer is still to be given, having given any other."""
        conduct = self._conduct(repository)
        refused = conduct.status and not (described and conduct.files_only)
        if conduct.silent:
            self.hub.closing.wait()
            self.close_connection = True
        elif refused and self.hub.spend(repository, "status", conduct.times):
            if conduct.endless:
                self._flood(conduct.status, conduct.headers)
            else:
                self._send(conduct.status, b"", conduct.headers)
        elif refusal := self._refusal(conduct, repository, revision, described=described):
            self._refuse(*refusal)
        elif conduct.garbage is not None:
            self._send(200, conduct.garbage)
        else:
            return True
        return False

    def _refusal(
        self, conduct: Conduct, repository: str, revision: str, *, described: bool
    ) -> tuple[int, str, str] | None:
        """Status, code and words; a client without a token is told 401, as the real one does."""
        sent = self.headers.get("Authorization")
        opened = sent == f"Bearer {conduct.token}"
        if conduct.expires_after and self.hub.sent_of(repository) >= conduct.expires_after:
            return 401, "", "Invalid credentials in Authorization header"
        known = self.hub.repositories.files(repository)
        if not known or (conduct.private and not opened):
            return (404 if sent else 401), "RepoNotFound", "Repository not found"
        if conduct.gated and not described and not opened:
            words = f"Access to model {repository} is restricted"
            return (403 if sent else 401), "GatedRepo", words
        if self.hub.repositories.folder(repository, revision) is None:
            return 404, "RevisionNotFound", f"Invalid rev id: {revision}"
        return None

    def _describe(self, repository: str, what: str, revision: str) -> None:
        files = self.hub.repositories.files(repository, revision)
        if what == "tree":
            listed: object = [_entry(name, hub_file(path)) for name, path in files.items()]
        else:
            conduct = self._conduct(repository)
            asked = parse_qs(urlsplit(self.path).query).get("blobs", [""])[0].lower()
            with_blobs = asked in ("true", "1")
            listed = {
                "id": repository,
                "sha": self.hub.commit(repository, revision),
                "private": conduct.private,
                "gated": "manual" if conduct.gated else False,
                "siblings": [
                    _sibling(name, hub_file(path)) if with_blobs else {"rfilename": name}
                    for name, path in files.items()
                ],
                "tags": [],
                "downloads": 0,
            }
        self._send(200, json.dumps(listed).encode(), {"Content-Type": "application/json"})

    def _file(self, repository: str, revision: str, name: str) -> None:
        """A small file, or the redirect to a large one, as the real hub does both."""
        path = self.hub.repositories.files(repository, revision).get(name)
        if path is None:
            self._refuse(404, "EntryNotFound", "Entry not found")
            return
        file, commit = hub_file(path), self.hub.commit(repository, revision)
        headers = {"X-Repo-Commit": commit, "ETag": f'"{file.hash}"', "Accept-Ranges": "bytes"}
        if not file.lfs:
            self._content(repository, name, file, headers)
            return
        place = f"{self.hub.store or self.hub.url}/store/{repository}/{commit}/{quote(name)}"
        linked = {"X-Linked-Size": str(file.size), "X-Linked-ETag": f'"{file.hash}"'}
        self._send(302, b"", {**headers, **linked, "Location": place})

    def _stored(self, repository: str, commit: str, name: str) -> None:
        """A large file; as in the real hub's store no token is asked for."""
        path = self.hub.repositories.files(repository, commit).get(name)
        if path is None:
            self._refuse(404, "EntryNotFound", "Entry not found")
            return
        file = hub_file(path)  # the client takes a store on the same host for the hub itself
        headers = {"X-Repo-Commit": commit, "ETag": f'"{file.hash}"', "Accept-Ranges": "bytes"}
        self._content(repository, name, file, headers)

    def _content(self, repository: str, name: str, file: HubFile, headers: dict[str, str]) -> None:
        headers = {**headers, "Content-Type": "application/octet-stream"}
        begin, end, status = 0, file.size, 200
        wanted = _RANGE.fullmatch(self.headers.get("Range", ""))
        if wanted and not self._conduct(repository).no_ranges:
            begin, last = int(wanted[1]), wanted[2]
            end = min(int(last) + 1 if last else file.size, file.size)
            if begin >= file.size:
                self._send(416, b"", {"Content-Range": f"bytes */{file.size}"})
                return
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{file.size}"
            status = 206
        self._start(status, end - begin, headers)
        if self.command == "GET":
            self._copy(repository, name, file, begin, end)

    def _copy(self, repository: str, name: str, file: HubFile, begin: int, end: int) -> None:
        conduct, first = self._conduct(repository), begin
        wrong = name in conduct.wrong and self.hub.spend(
            repository, f"wrong {name}", conduct.wrong_times
        )
        piece = CHUNK if not conduct.bytes_per_s else max(1, int(conduct.bytes_per_s / 20))
        with file.path.open("rb") as content:
            content.seek(begin)
            while begin < end and (chunk := content.read(min(piece, end - begin))):
                if conduct.cut_after and begin + len(chunk) - first > conduct.cut_after:
                    chunk = chunk[: conduct.cut_after - (begin - first)]
                    if self.hub.spend(repository, "cut", conduct.cuts):
                        self._give(repository, name, chunk)
                        self.close_connection = True
                        return
                    conduct = replace(conduct, cut_after=0)
                if wrong and not begin:
                    chunk = bytes([chunk[0] ^ 1]) + chunk[1:]
                self._give(repository, name, chunk)
                begin += len(chunk)
                content.seek(begin)
                if conduct.bytes_per_s and self.hub.closing.wait(len(chunk) / conduct.bytes_per_s):
                    self.close_connection = True
                    return

    def _give(self, repository: str, name: str, chunk: bytes) -> None:
        self.wfile.write(chunk)
        self.hub.count(repository, name, len(chunk))

    def _refuse(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {})}
        body = json.dumps({"error": message}).encode()
        self._send(status, body, {**headers, "Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self._start(status, len(body), headers or {})
        if self.command == "GET":
            self.wfile.write(body)

    def _flood(self, status: int, headers: Mapping[str, str]) -> None:
        self._start(status, 1 << 50, headers)
        while not self.hub.closing.is_set():
            self.wfile.write(bytes(CHUNK))

    def _start(self, status: int, length: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()


def _sibling(name: str, file: HubFile) -> dict[str, Any]:
    """A file as the description with `?blobs=true` has it."""
    found: dict[str, Any] = {"rfilename": name, "size": file.size, "blobId": file.hash}
    if file.lfs:
        found["blobId"] = file.hash[:40]  # of the pointer, which nobody reads here
        found["lfs"] = {"size": file.size, "sha256": file.hash, "pointerSize": 134}
    return found


def _entry(name: str, file: HubFile) -> dict[str, Any]:
    """A file as the tree has it."""
    found: dict[str, Any] = {"type": "file", "path": name, "size": file.size, "oid": file.hash}
    if file.lfs:
        found |= {
            "oid": file.hash[:40],
            "lfs": {"oid": file.hash, "size": file.size, "pointerSize": 134},
        }
    return found
