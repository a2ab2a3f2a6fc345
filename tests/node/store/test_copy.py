"""A model from one cache to another over real sockets, also when it goes wrong."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from models import COMMIT, REPOSITORY, certificate, content, model
from waiting import until

from spark_cluster.node.store import arriving, blob_server, wire
from spark_cluster.node.store.arriving import PART
from spark_cluster.node.store.blob_client import BlobClient
from spark_cluster.node.store.blob_server import BlobServer
from spark_cluster.node.store.hub_cache import HubCache, alone
from spark_cluster.node.store.manifest import Manifest
from spark_cluster.node.store.verify import verify
from spark_cluster.node.values import ResourceError

MODEL = {
    "config.json": b'{"model_type": "llama"}',
    "empty.txt": b"",
    "one.txt": b"1",
    "model-1.safetensors": content(3 * PART + 12345, 1),
    "model-2.safetensors": content(2 * PART, 2),
    "sub/tokenizer.json": content(70_000, 3),
}
LOOPBACK = ("127.0.0.1", 0)


@pytest.fixture
def source(tmp_path: Path) -> tuple[HubCache, Manifest]:
    root = tmp_path / "source"
    return HubCache(root, tmp_path / "ours-source"), model(root, MODEL)


@pytest.fixture
def target(tmp_path: Path) -> HubCache:
    return HubCache(tmp_path / "target", tmp_path / "ours-target")


@contextmanager
def serving(source, *, addresses=(LOOPBACK,), **given) -> Iterator[BlobServer]:
    server = BlobServer(*source, "token", **given)
    thread = threading.Thread(target=server.run, args=(addresses,))
    thread.start()
    assert server.ready.wait(10)
    try:
        yield server
    finally:
        server.ended.set()
        thread.join(10)


def receiver(target: HubCache, manifest: Manifest, addresses, **given) -> BlobClient:
    given = {"token": "token", "sender": "spark1", "kept_free": 0, **given}
    return BlobClient(target, manifest, addresses=addresses, **given)


def assert_whole(target: HubCache, manifest: Manifest) -> None:
    assert verify(target, manifest).sound
    snapshot = target.snapshot(REPOSITORY, COMMIT)
    assert {path: (snapshot / path).read_bytes() for path in MODEL} == MODEL
    left = list((target.folder(REPOSITORY) / "blobs").glob("*.incomplete"))
    assert not left


@contextmanager
def relay(to: tuple[str, int], cut_after: int) -> Iterator[tuple[tuple[str, int], list[int]]]:
    """Pass bytes on until so many have come from the sender; then break all that is open."""
    listening = socket.create_server(("127.0.0.1", 0))
    carried, held, lock = [0], [listening], threading.Lock()

    def pump(a: socket.socket, b: socket.socket, *, counts: bool) -> None:
        with suppress(OSError):
            while data := a.recv(1 << 16):
                with lock:
                    carried[0] += len(data) if counts else 0
                    cut = carried[0] > cut_after
                if cut:
                    break
                b.sendall(data)
        for end in held if counts and carried[0] > cut_after else (a, b):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def accept() -> None:
        with suppress(OSError):
            while True:
                near, _ = listening.accept()
                far = socket.create_connection(to)
                held.extend((near, far))
                for a, b, counts in ((near, far, False), (far, near, True)):
                    threading.Thread(
                        target=pump, args=(a, b), kwargs={"counts": counts}, daemon=True
                    ).start()

    thread = threading.Thread(target=accept, daemon=True)
    thread.start()
    try:
        yield listening.getsockname()[:2], carried
    finally:
        for end in held:
            end.close()


@pytest.mark.parametrize("encrypted", [True, False], ids=["tls", "plain"])
def test_all_of_it_arrives_over_two_addresses(source, target, tmp_path, encrypted):
    _, manifest = source
    pem, key = certificate(tmp_path) if encrypted else (None, None)
    tls = wire.sender_tls(str(pem), str(key)) if encrypted else None
    shown: list[tuple[int, int]] = []
    with serving(source, addresses=(LOOPBACK, LOOPBACK), tls=tls) as server:
        client = receiver(target, manifest, server.bound, revision="main")
        client.tls = wire.receiver_tls(pem.read_text()) if encrypted else None
        client.progress = lambda *what: shown.append(what)
        received = client.run()
    assert_whole(target, manifest)
    assert target.commit_of(REPOSITORY, "main") == COMMIT
    assert (received.moved, received.kept) == (manifest.size, 0)
    assert shown[-1] == (manifest.size, manifest.size)


def test_memory_of_written_parts_is_used_again():
    memory, part = arriving.Memory(), arriving.Part(0, 1000)
    first = memory.take(part)
    second = memory.take(part)
    assert first.obj is not second.obj
    assert len(first) == 1000
    memory.give_back(first)
    assert memory.take(arriving.Part(0, PART)).obj is first.obj


def test_nothing_is_moved_twice(source, target):
    _, manifest = source
    with serving(source) as server:
        receiver(target, manifest, server.bound).run()
        assert receiver(target, manifest, server.bound).run().moved == 0
        assert server.sent == manifest.size
    refused = receiver(target, manifest, [("127.0.0.1", 1)]).run()
    assert refused.moved == 0, "a sender is not even asked"


def test_a_cut_in_the_middle_is_gone_on_with(source, target, monkeypatch):
    _, manifest = source
    part = 256 * 1024
    monkeypatch.setattr(arriving, "PART", part)
    with serving(source) as server:
        with relay(server.bound[0], manifest.size // 2) as (address, _):
            client = receiver(target, manifest, [address], silent_s=1.5, switch_s=0.5, streams=2)
            warnings: list[str] = []
            client.warn = warnings.append
            with pytest.raises(ResourceError, match="spark1 sends nothing"):
                client.run()
            assert [text[:35] for text in warnings] == ["nothing comes from spark1 any more "]
        assert target.lacking(manifest).begun > 0
        with relay(server.bound[0], 1 << 40) as (address, carried):
            received = receiver(target, manifest, [address], streams=2).run()
    assert received.kept > manifest.size // 3
    assert carried[0] < 1.02 * (manifest.size - received.kept) + 2 * part
    assert_whole(target, manifest)


def test_a_fabric_that_never_answers_is_left_for_the_management_network(source, target):
    _, manifest = source
    with serving(source) as server, socket.create_server(LOOPBACK) as mute:
        client = receiver(target, manifest, [mute.getsockname()], spare=server.bound)
        client.switch_s, warnings = 1.0, []
        client.warn = warnings.append
        received = client.run()
        client.addresses = ()
        client.leave()
    assert received.switched
    assert received.moved == manifest.size
    (warning,) = warnings
    assert "nothing comes from spark1 over the fabric" in warning
    assert "go over 127.0.0.1, on 1 Gbit/s about" in warning
    assert_whole(target, manifest)


def test_a_fabric_that_is_lost_in_the_middle_is_left_too(source, target):
    _, manifest = source
    warnings: list[str] = []
    with serving(source) as server, relay(server.bound[0], manifest.size // 2) as (address, _):
        client = receiver(target, manifest, [address], spare=server.bound, switch_s=1.0, streams=2)
        client.warn = warnings.append
        received = client.run()
    assert received.switched
    assert len(warnings) == 1
    assert_whole(target, manifest)


def test_a_spare_address_of_another_machine_does_not_stop_the_sender(source, target):
    _, manifest = source
    server = BlobServer(*source, "token")
    thread = threading.Thread(target=server.run, args=([LOOPBACK], [("192.0.2.1", 0), LOOPBACK]))
    thread.start()
    try:
        assert server.ready.wait(10)
        assert len(server.bound) == 2
        assert not receiver(target, manifest, server.bound[:1]).run().switched
    finally:
        server.ended.set()
        thread.join(10)


def test_a_source_that_is_damaged_is_refused(source, target):
    cache, manifest = source
    file = next(f for f in manifest.files if f.path == "model-2.safetensors")
    with cache.blob(REPOSITORY, file.blob).open("r+b") as opened:
        opened.seek(PART)
        opened.write(b"flipped")
    with serving(source) as server, pytest.raises(ResourceError) as error:
        receiver(target, manifest, server.bound).run()
    assert "model-2.safetensors from spark1 is not what its hash says" in error.value.message
    assert not target.blob(REPOSITORY, file.blob).exists()
    assert not target.snapshot(REPOSITORY, COMMIT).exists()


def test_a_half_file_of_other_content_is_thrown_away(source, target):
    _, manifest = source
    file = manifest.files[0]
    half = target.incomplete(REPOSITORY, file.blob)
    half.parent.mkdir(parents=True)
    half.write_bytes(b"x" * (file.size - 1))
    with serving(source) as server:
        receiver(target, manifest, server.bound).run()
    assert_whole(target, manifest)


def test_a_source_of_another_size_says_so(source, target):
    cache, manifest = source
    os.truncate(cache.blob(REPOSITORY, manifest.files[-1].blob), 5)
    with serving(source) as server, pytest.raises(ResourceError, match="cannot give"):
        receiver(target, manifest, server.bound).run()


def test_a_receiver_without_the_token_gets_nothing(source, target):
    _, manifest = source
    with serving(source) as server:
        with pytest.raises(ResourceError, match=r"sends nothing|is not spark1"):
            receiver(target, manifest, server.bound, token="other", silent_s=0.5).run()
        assert server.sent == 0


def test_a_sender_without_the_token_is_refused(source, target):
    _, manifest = source

    def impostor(listening: socket.socket) -> None:
        with suppress(OSError, EOFError):
            while True:
                connection, _ = listening.accept()
                wire.send(connection, {"nonce": "a"})
                wire.receive(connection)
                wire.send(connection, {"proof": "b"})

    with socket.create_server(LOOPBACK) as listening:
        threading.Thread(target=impostor, args=(listening,), daemon=True).start()
        with pytest.raises(ResourceError, match="is not spark1"):
            receiver(target, manifest, [listening.getsockname()]).run()
    assert not list(target.root.rglob("snapshots"))


def test_another_certificate_is_refused(source, target, tmp_path):
    _, manifest = source
    (tmp_path / "other").mkdir()
    pem, key = certificate(tmp_path)
    other, _ = certificate(tmp_path / "other")
    with serving(source, tls=wire.sender_tls(str(pem), str(key))) as server:
        client = receiver(target, manifest, server.bound)
        client.tls = wire.receiver_tls(other.read_text())
        with pytest.raises(ResourceError, match="it has another certificate"):
            client.run()


def test_a_silent_sender_is_given_up(source, target, monkeypatch):
    _, manifest = source
    monkeypatch.setattr(wire, "STALLED_S", 0.2)
    with socket.create_server(LOOPBACK) as listening:
        client = receiver(target, manifest, [listening.getsockname()], silent_s=1.0)
        with pytest.raises(ResourceError, match="spark1 sends nothing for 1 s"):
            client.run()


def test_a_full_disk_is_said_before_the_first_byte(source, target):
    _, manifest = source
    with serving(source) as server:
        with pytest.raises(ResourceError, match=r"needs 0\.0 GB more on .* are free"):
            receiver(target, manifest, server.bound, kept_free=1 << 60).run()
        assert server.sent == 0


def test_a_disk_that_gets_full_leaves_what_is_there(source, target, monkeypatch):
    _, manifest = source
    written, pwrite = [0], os.pwrite

    def filling(handle, data, at):
        written[0] += len(data)
        if written[0] > 2 * PART:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(handle, data, at)

    with serving(source) as server:
        with monkeypatch.context() as full:
            full.setattr(arriving.os, "pwrite", filling)
            with pytest.raises(ResourceError, match="No space left") as error:
                receiver(target, manifest, server.bound).run()
        assert "goes on where this one ended" in error.value.hint
        assert receiver(target, manifest, server.bound).run().kept > 0
    assert_whole(target, manifest)


def test_what_is_still_downloaded_is_waited_for(source, target):
    cache, manifest = source
    blobs = [cache.blob(REPOSITORY, file.blob) for file in manifest.files[:3]]
    for blob in blobs:
        blob.rename(f"{blob}.hidden")

    def appear() -> None:
        for blob in blobs:
            Path(f"{blob}.hidden").rename(blob)

    with serving(source, follow=True) as server:
        timer = threading.Timer(0.7, appear)
        timer.start()
        receiver(target, manifest, server.bound).run()
        timer.join()
    assert_whole(target, manifest)


def test_what_has_come_of_a_half_file_is_sent(source, target):
    """Two nodes are ready little after one would be, however few files a model has."""
    cache, manifest = source
    largest = max(manifest.files, key=lambda file: file.size)
    blob, half = (place(REPOSITORY, largest.blob) for place in (cache.blob, cache.incomplete))
    whole = blob.read_bytes()
    blob.unlink()
    half.write_bytes(whole[: 2 * PART + 5])
    with alone(cache, REPOSITORY), serving(source, follow=True) as server:
        client = receiver(target, manifest, server.bound)
        thread = threading.Thread(target=client.run)
        thread.start()
        rest = sum(file.size for file in manifest.files) - largest.size
        until(lambda: client.moved == rest + 2 * PART, 30, "the half of it is there")
        half.write_bytes(whole)
        half.rename(blob)
        thread.join(30)
    assert_whole(target, manifest)


def test_what_nobody_downloads_any_more_is_not_waited_for(source, target, monkeypatch):
    monkeypatch.setattr(blob_server, "WRITER_GONE_S", 0.3)
    cache, manifest = source
    cache.blob(REPOSITORY, manifest.files[0].blob).unlink()
    with (
        serving(source, follow=True) as server,
        pytest.raises(ResourceError, match="its download there has ended without it"),
    ):
        receiver(target, manifest, server.bound).run()


def test_what_never_comes_has_a_limit(source, target):
    cache, manifest = source
    cache.blob(REPOSITORY, manifest.files[0].blob).unlink()
    missing = pytest.raises(ResourceError, match="has no ")
    with alone(cache, REPOSITORY), serving(source, follow=True) as server, missing:
        receiver(target, manifest, server.bound, patience_s=0.5).run()


def test_a_server_without_receivers_ends(source):
    server = BlobServer(*source, "token", idle_s=0.1)
    server.run(addresses=[LOOPBACK])
    assert server.bound


def test_a_stranger_is_refused_what_is_not_of_the_model(source):
    _, manifest = source
    with serving(source) as server:
        for asked in (
            {"blob": "../../../../etc/passwd", "begin": 0, "end": 1},
            {"blob": manifest.files[0].blob, "begin": 0, "end": 1 << 50},
            {"blob": manifest.files[0].blob, "begin": -5, "end": 1},
        ):
            with socket.create_connection(server.bound[0], timeout=5) as stream:
                wire.greet_as_receiver(stream, "token")
                wire.send(stream, asked)
                with pytest.raises((EOFError, ConnectionError)):
                    wire.receive(stream)
