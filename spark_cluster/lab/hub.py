"""A hub of models for tests and the lab: the real client library downloads from it.

It answers as huggingface.co does, as far as a client that reads models needs it: the description of
a repository, its files, HEAD with ETag and commit, parts of files, and the refusals with their
`X-Error-Code`. Repositories are folders: `ROOT/ORGANISATION/NAME/files`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

_API = re.compile(r"/api/models/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+)(?:/.*)?)?")
_FILE = re.compile(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)")
_RANGE = re.compile(r"bytes=(\d+)-(\d*)")
SMALL = 1 << 20
"""Files above this count for a commit by their size only, bytes."""
CHUNK = 1 << 20


@dataclass
class Conduct:
    """How a repository is answered for, besides as it should be.

    Attributes:
        gated: its files need a token, its description does not.
        private: without a token it does not exist.
        status: of every answer, with `headers`; 0: as it should be.
        silent: requests are taken and never answered, until the server is closed.
        garbage: the body of every good answer.
        token: that opens what is gated or private.
    """

    gated: bool = False
    private: bool = False
    status: int = 0
    headers: Mapping[str, str] = field(default_factory=dict)
    silent: bool = False
    garbage: bytes | None = None
    token: str = "hf_lab"  # noqa: S105  of this server only


@dataclass
class LabHub:
    """A hub that serves a folder.

    Attributes:
        conduct: by repository; those not named are answered for as they should be.
        requests: what was asked: method and path.
    """

    root: Path
    conduct: dict[str, Conduct] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    closing: threading.Event = field(default_factory=threading.Event)
    url: str = ""

    def files(self, repository: str) -> dict[str, Path]:
        """The files of a repository by their names; empty when there is none."""
        if any(part in ("", ".", "..") for part in repository.split("/")):
            return {}
        folder = self.root / repository
        paths = sorted(path for path in folder.rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): path for path in paths}

    def commit(self, repository: str) -> str:
        """The commit of a repository, which follows from its files."""
        digest = hashlib.sha1(repository.encode(), usedforsecurity=False)
        for name, path in self.files(repository).items():
            digest.update(f"{name} {etag(path)}\n".encode())
        return digest.hexdigest()


def etag(path: Path) -> str:
    """Return what names a file's content."""
    size = path.stat().st_size
    digest = hashlib.sha1(str(size).encode(), usedforsecurity=False)
    if size <= SMALL:
        digest.update(path.read_bytes())
    return digest.hexdigest()


@contextmanager
def serve(root: Path, host: str = "127.0.0.1", port: int = 0) -> Iterator[LabHub]:
    """Serve the repositories below a folder, as long as the context lasts.

    Args:
        port: 0: one that is free.
    """
    hub = LabHub(root)
    with ThreadingHTTPServer((host, port), functools.partial(_Handler, hub)) as server:
        server.daemon_threads = True
        hub.url = f"http://{host}:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield hub
        finally:
            hub.closing.set()
            server.shutdown()
            thread.join()


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
        if found := _API.fullmatch(path):
            repository, what, revision = found.groups()
            if self._allowed(repository, revision or "main", described=True):
                self._describe(repository, what or "")
        elif found := _FILE.fullmatch(path):
            repository, revision, name = found.groups()
            if self._allowed(repository, revision, described=False):
                self._file(repository, name)
        else:
            self._refuse(404, "", "Not found")

    def _allowed(self, repository: str, revision: str, *, described: bool) -> bool:
        """Return whether the answer is still to be given, having given any other."""
        conduct = self.hub.conduct.get(repository, Conduct())
        if conduct.silent:
            self.hub.closing.wait()
            self.close_connection = True
        elif conduct.status:
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
        if not self.hub.files(repository) or (conduct.private and not opened):
            return (404 if sent else 401), "RepoNotFound", "Repository not found"
        if conduct.gated and not described and not opened:
            words = f"Access to model {repository} is restricted"
            return (403 if sent else 401), "GatedRepo", words
        if revision not in ("main", self.hub.commit(repository)):
            return 404, "RevisionNotFound", f"Invalid rev id: {revision}"
        return None

    def _describe(self, repository: str, what: str) -> None:
        files = self.hub.files(repository)
        if what == "tree":
            listed: object = [
                {"type": "file", "path": name, "size": path.stat().st_size, "oid": etag(path)}
                for name, path in files.items()
            ]
        else:
            conduct = self.hub.conduct.get(repository, Conduct())
            listed = {
                "id": repository,
                "sha": self.hub.commit(repository),
                "private": conduct.private,
                "gated": "manual" if conduct.gated else False,
                "siblings": [{"rfilename": name} for name in files],
                "tags": [],
                "downloads": 0,
            }
        self._send(200, json.dumps(listed).encode(), {"Content-Type": "application/json"})

    def _file(self, repository: str, name: str) -> None:
        path = self.hub.files(repository).get(name)
        if path is None:
            self._refuse(404, "EntryNotFound", "Entry not found")
            return
        size = path.stat().st_size
        headers = {
            "ETag": f'"{etag(path)}"',
            "X-Repo-Commit": self.hub.commit(repository),
            "Accept-Ranges": "bytes",
            "Content-Type": "application/octet-stream",
        }
        begin, end, status = 0, size, 200
        if wanted := _RANGE.fullmatch(self.headers.get("Range", "")):
            begin, last = int(wanted[1]), wanted[2]
            end = min(int(last) + 1 if last else size, size)
            if begin >= size:
                self._send(416, b"", {"Content-Range": f"bytes */{size}"})
                return
            headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
            status = 206
        self._start(status, end - begin, headers)
        if self.command == "GET":
            self._copy(path, begin, end)

    def _copy(self, path: Path, begin: int, end: int) -> None:
        with path.open("rb") as file:
            file.seek(begin)
            while begin < end and (chunk := file.read(min(CHUNK, end - begin))):
                self.wfile.write(chunk)
                begin += len(chunk)

    def _refuse(self, status: int, code: str, message: str) -> None:
        headers = {"X-Error-Message": message, **({"X-Error-Code": code} if code else {})}
        body = json.dumps({"error": message}).encode()
        self._send(status, body, {**headers, "Content-Type": "application/json"})

    def _send(self, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
        self._start(status, len(body), headers or {})
        if self.command == "GET":
            self.wfile.write(body)

    def _start(self, status: int, length: int, headers: Mapping[str, str]) -> None:
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()
