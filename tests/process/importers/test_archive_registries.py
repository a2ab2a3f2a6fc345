"""Registries that are archives: fetched by HTTP, and used only when the checksum is right."""

import hashlib
import socket
import threading
from contextlib import ExitStack
from pathlib import Path

import pytest
from cases import each_row
from registry_samples import archive as packed
from registry_samples import name_registry, ours
from small_server import answering
from waiting import HANG_S

from spark_cluster.config import registries
from spark_cluster.config.project import Project
from spark_cluster.config.recipes import load_recipe
from spark_cluster.errors import Failed, InvalidFile
from spark_cluster.importers import fetching
from spark_cluster.importers.fetching import Update, look


@pytest.fixture
def project(project, monkeypatch) -> Path:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return project


@pytest.fixture
def serve():
    """`serve(answer)` is the address of a server that answers so; bytes are a content."""
    with ExitStack() as stack:

        def start(answer) -> str:
            reply = answer if callable(answer) else lambda _: (200, {}, answer)
            return f"http://127.0.0.1:{stack.enter_context(answering(reply))}/recipes.tar.gz"

        yield start


def taken(project: Path, url: str, data: bytes) -> Update:
    name_registry(project, url, sha256=f"'{hashlib.sha256(data).hexdigest()}'")
    (registry,) = registries.registries(project)
    return look(registry, project)


def test_an_archive_is_taken_as_its_checksum_says(serve, project):
    data = packed({"./top/recipes/one.yaml": ours("one"), "top/README.md": "x"})
    found = taken(project, serve(data), data)
    assert (found.in_use, found.changes.added) == (True, ("one",))
    assert load_recipe("@theirs/one", Project(project)).model.name == "org/one"


def test_another_content_than_stated_is_refused(serve, project):
    url = serve(packed({"one.yaml": ours("changed")}))
    with pytest.raises(Failed, match="has the sha256"):
        taken(project, url, b"what was stated")
    assert not list(registries.cache_folder().rglob("*.yaml"))


def test_members_that_lead_elsewhere_are_not_taken(serve, project, tmp_path):
    elsewhere = ("../out", "a/../../out", f"{tmp_path}/absolute", "red\x1b[31m")
    members = {f"{name}.yaml": ours("out") for name in elsewhere}
    links = {"link.yaml": "/etc/passwd", "a.yaml": "good.yaml"}
    data = packed({"good.yaml": ours("good"), **members}, links)
    found = taken(project, serve(data), data)
    assert [one.name for one in found.found.recipes] == ["good"]
    assert len(found.found.skipped) == 6
    assert not list(tmp_path.rglob("out.yaml"))
    assert not (tmp_path / "absolute.yaml").exists()


@pytest.mark.parametrize(
    ("limit", "data", "message"),
    [
        ("LARGEST_CONTENT", packed({"zeros.bin": bytes(8 << 20)}), "unpacks to more than 1 MiB"),
        ("LARGEST_ARCHIVE", bytes(2 << 20), "larger than 1 MiB"),
        ("LARGEST_ARCHIVE", packed({"one.yaml": ours("one")})[:10], r"not a \.tar\.gz"),
        ("LARGEST_ARCHIVE", packed({"one.yaml": ours("one")})[:200], r"not a \.tar\.gz"),
    ],
    ids=["a bomb", "too large", "cut", "cut later"],
)
def test_what_cannot_be_unpacked(serve, project, monkeypatch, limit, data, message):
    monkeypatch.setattr(fetching, limit, 1 << 20)
    with pytest.raises(Failed, match=message):
        taken(project, serve(data), data)


@pytest.mark.parametrize("begins", [b"HTTP/1.1 200 OK\r\nX-A: ", b"HTTP/1.1 200 OK\r\n\r\n"])
def test_headers_that_never_end(project, serve, monkeypatch, begins):
    """Nor a body: each byte comes in time, and the limit is for all of it."""
    over = threading.Event()

    def drip(request) -> None:
        try:
            request.wfile.write(begins)
            while not over.wait(0.02):
                request.wfile.write(b"a")
        except OSError:  # the client no longer waits
            return

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


def test_a_server_that_is_silent_is_given_up(serve, project, monkeypatch):
    monkeypatch.setattr(fetching, "STALL_S", 0.5)
    gone = threading.Event()
    with pytest.raises(Failed, match="cannot be fetched"):
        taken(project, serve(lambda _: gone.wait(600) and None), b"x")
    gone.set()


@pytest.mark.parametrize("scheme", ["file", "ftp"])
def test_it_is_redirected_to_http_only(serve, project, tmp_path, scheme):
    """urllib itself refuses files of this machine; FTP it would follow."""
    with socket.create_server(("127.0.0.1", 0)) as ftp:
        host = f"127.0.0.1:{ftp.getsockname()[1]}" if scheme == "ftp" else ""
        url = serve(lambda _: (302, {"Location": f"{scheme}://{host}{tmp_path}/x"}, ""))
        with pytest.raises(Failed, match="answers 302"):
            taken(project, url, b"x")
        ftp.setblocking(False)
        with pytest.raises(BlockingIOError):
            ftp.accept()


def test_an_error_of_the_server_is_said(serve, project):
    with pytest.raises(Failed, match="404"):
        taken(project, serve(lambda _: (404, {}, "")), b"x")


@each_row(__file__, "archive_registries.toml", "entries_that_are_refused")
def test_entries_that_are_refused(project, url, more, message):
    name_registry(project, url, **{key: f"'{value}'" for key, value in more.items()})
    with pytest.raises(InvalidFile, match=message):
        registries.registries(project)
