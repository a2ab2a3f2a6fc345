"""Registries that are archives: fetched by HTTP, and used only when the checksum is right."""

from __future__ import annotations

import hashlib
import socket
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from registry_samples import archive as packed
from registry_samples import name_registry, ours
from waiting import HANG_S

from spark_cluster.config import registries
from spark_cluster.config.project import Project
from spark_cluster.config.recipes import load_recipe
from spark_cluster.errors import Failed, InvalidFile
from spark_cluster.importers import fetching
from spark_cluster.importers.fetching import Update, look

Answer = Callable[[BaseHTTPRequestHandler], None]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "project"
    folder.mkdir()
    return folder


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], str]]:
    """`serve(answer)` is the address of a server that answers so."""
    servers: list[ThreadingHTTPServer] = []

    def start(answer: Answer) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                answer(self)

            def log_message(self, *_words: object) -> None:
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        server.block_on_close = False
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        servers.append(server)
        return f"http://127.0.0.1:{server.server_port}/recipes.tar.gz"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def content(data: bytes) -> Answer:
    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        request.wfile.write(data)

    return answer


def taken(project: Path, url: str, data: bytes) -> Update:
    name_registry(project, url, sha256=f"'{hashlib.sha256(data).hexdigest()}'")
    (registry,) = registries.registries(project)
    return look(registry, project)


def test_an_archive_is_taken_as_its_checksum_says(
    serve: Callable[[Answer], str], project: Path
) -> None:
    data = packed({"./top/recipes/one.yaml": ours("one"), "top/README.md": "x"})
    found = taken(project, serve(content(data)), data)
    assert (found.in_use, found.changes.added) == (True, ("one",))
    assert load_recipe("@theirs/one", Project(project)).model.name == "org/one"


def test_another_archive_shows_what_differs(serve: Callable[[Answer], str], project: Path) -> None:
    first = packed({"one.yaml": ours("one"), "two.yaml": ours("two")})
    second = packed({"one.yaml": ours("one", "anew"), "three.yaml": ours("three")})
    answers = [content(first), content(second)]

    def in_turn(request: BaseHTTPRequestHandler) -> None:
        answers.pop(0)(request)

    url = serve(in_turn)
    taken(project, url, first)
    changes = taken(project, url, second).changes
    assert (changes.added, changes.changed, changes.removed) == (("three",), ("one",), ("two",))


def test_another_content_than_stated_is_refused(
    serve: Callable[[Answer], str], project: Path
) -> None:
    url = serve(content(packed({"one.yaml": ours("changed")})))
    with pytest.raises(Failed, match="has the sha256"):
        taken(project, url, b"what was stated")
    assert not list(registries.cache_folder().rglob("*.yaml"))


def test_members_that_lead_elsewhere_are_not_taken(
    serve: Callable[[Answer], str], project: Path, tmp_path: Path
) -> None:
    data = packed(
        {
            "good.yaml": ours("good"),
            "../out.yaml": ours("out"),
            "a/../../out.yaml": ours("out"),
            f"{tmp_path}/absolute.yaml": ours("absolute"),
            "red\x1b[31m.yaml": ours("red"),
        },
        {"link.yaml": "/etc/passwd", "a.yaml": "good.yaml"},
    )
    found = taken(project, serve(content(data)), data)
    assert [one.name for one in found.found.recipes] == ["good"]
    assert len(found.found.skipped) == 6
    assert not list(tmp_path.rglob("out.yaml"))
    assert not (tmp_path / "absolute.yaml").exists()


def test_an_archive_that_unpacks_to_too_much_is_given_up(
    serve: Callable[[Answer], str], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "LARGEST_CONTENT", 1 << 20)
    data = packed({"zeros.bin": bytes(8 << 20), "one.yaml": ours("one")})
    with pytest.raises(Failed, match="unpacks to more than 1 MiB"):
        taken(project, serve(content(data)), data)


def test_an_archive_that_is_too_large_is_given_up(
    serve: Callable[[Answer], str], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "LARGEST_ARCHIVE", 1 << 20)
    data = bytes(2 << 20)
    with pytest.raises(Failed, match="larger than 1 MiB"):
        taken(project, serve(content(data)), data)


@pytest.mark.parametrize("cut", [10, 200])
def test_a_damaged_archive_is_none(serve: Callable[[Answer], str], project: Path, cut: int) -> None:
    data = packed({"one.yaml": ours("one")})[:cut]
    with pytest.raises(Failed, match=r"not a \.tar\.gz"):
        taken(project, serve(content(data)), data)


def test_an_answer_that_never_ends_is_given_up(
    serve: Callable[[Answer], str], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def drip(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        end = time.monotonic() + 600
        try:
            while time.monotonic() < end:
                request.wfile.write(b"x")
                time.sleep(0.02)
        except OSError:
            return

    monkeypatch.setattr(fetching, "TIMEOUT_S", 0.5)
    began = time.monotonic()
    with pytest.raises(Failed, match="not fetched within"):
        taken(project, serve(drip), b"x")
    assert time.monotonic() - began < 120


def test_headers_that_never_end(project, serve, monkeypatch) -> None:
    """Each byte comes in time, and the limit is for all of it."""
    over = threading.Event()

    def drip(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"HTTP/1.1 200 OK\r\nX-A: ")
        while not over.wait(0.02):
            request.wfile.write(b"a")

    monkeypatch.setattr(fetching, "TIMEOUT_S", 0.5)
    found: list[BaseException] = []

    def take() -> None:
        with pytest.raises(Failed) as caught:
            taken(project, serve(drip), b"x")
        found.append(caught.value)

    thread = threading.Thread(target=take, daemon=True)
    thread.start()
    thread.join(HANG_S / 4)
    over.set()
    (error,) = found
    assert "not fetched within 0.5 s" in str(error)


def test_a_server_that_is_silent_is_given_up(
    serve: Callable[[Answer], str], project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetching, "STALL_S", 0.5)
    gone = threading.Event()
    url = serve(lambda _: gone.wait(600) and None)
    with pytest.raises(Failed, match="cannot be fetched"):
        taken(project, url, b"x")
    gone.set()


@pytest.mark.parametrize("scheme", ["file", "ftp"])
def test_it_is_redirected_to_http_only(
    serve: Callable[[Answer], str], project: Path, tmp_path: Path, scheme: str
) -> None:
    """urllib itself refuses files of this machine; FTP it would follow."""
    with socket.create_server(("127.0.0.1", 0)) as ftp:
        host = f"127.0.0.1:{ftp.getsockname()[1]}" if scheme == "ftp" else ""

        def elsewhere(request: BaseHTTPRequestHandler) -> None:
            request.send_response(302)
            request.send_header("Location", f"{scheme}://{host}{tmp_path}/x")
            request.end_headers()

        with pytest.raises(Failed, match="answers 302"):
            taken(project, serve(elsewhere), b"x")
        ftp.setblocking(False)
        with pytest.raises(BlockingIOError):
            ftp.accept()


def test_an_error_of_the_server_is_said(serve: Callable[[Answer], str], project: Path) -> None:
    with pytest.raises(Failed, match="404"):
        taken(project, serve(lambda request: request.send_error(404)), b"x")


@pytest.mark.parametrize(
    ("url", "more", "message"),
    [
        ("file:///tmp/x.tar.gz", {"sha256": f"'{'0' * 64}'"}, "by https or http"),
        ("https://example.org/x.tar.gz", {"sha256": "'12'"}, "expected 64"),
        (
            "https://example.org/x",
            {"sha256": f"'{'0' * 64}'", "commit": f"'{'0' * 40}'"},
            "give one",
        ),
        ("http://example.org/x.tar.gz", {}, "an archive needs 'sha256'"),
    ],
)
def test_entries_that_are_refused(
    project: Path, url: str, more: dict[str, str], message: str
) -> None:
    name_registry(project, url, **more)
    with pytest.raises(InvalidFile, match=message):
        registries.registries(project)
