"""Who connects to a copy's sender without its key: gets nothing, and keeps no receiver out."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from copy_ends import Serving
from model_content import content, model
from waiting import FAR_S, HANG_S, until

from spark_cluster.node.processes import Processes
from spark_cluster.node.store import copy_channel
from spark_cluster.node.store.copy_channel import DONE, Broken
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.verify import verify

MODEL = {"config.json": b"{}", "model.safetensors": content(100_000, 1)}
ELSEWHERE = "127.0.0.2"
"""Another address than the receiver's."""


@pytest.fixture(params=[True, False], ids=["TLS", "plain"])
def sender(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Serving]:
    source = HubCache(tmp_path / "source", tmp_path / "ours")
    made = Serving(tmp_path, (source, model(source.root, MODEL)), encrypted=request.param)
    with made.running():
        yield made


def is_received(sender: Serving) -> bool:
    """Return whether a receiver gets the whole model."""
    target = HubCache(sender.folder / "target", sender.folder / "ours-target")
    moved = sender.receiver(target).run()["moved"]
    return verify(target, sender.manifest).sound and moved == sender.manifest.size


@pytest.mark.parametrize("shows", ["another certificate", "none"])
def test_without_the_key_no_byte_of_the_model_is_sent(sender, tmp_path, shows):
    """Of a stranger who takes whatever the sender shows; all else is the receiver's."""
    (tmp_path / "stranger").mkdir()
    secrets = copy_channel.make_secrets(tmp_path / "stranger", Processes())
    channel = sender.channel(**secrets)
    if shows == "none":
        channel = replace(channel, tls=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT))
    channel.tls.check_hostname = False
    channel.tls.verify_mode = ssl.CERT_NONE
    for number in (0, DONE):
        with contextlib.suppress(Broken), channel.connected("127.0.0.1", "spark1") as stream:
            stream.request(number, 0)
            assert not list(stream.answered(memoryview(bytearray(1))))
            raise AssertionError("it was answered")
    assert sender.thread.is_alive(), "a stranger cannot say that the copy is done"
    assert is_received(sender)


def test_who_stays_in_plain_text_gets_nothing(sender):
    """The end of TLS, by which both ends agree to go on without, needs the key before it."""
    address = ("127.0.0.1", sender.port)
    with socket.create_connection(address, timeout=HANG_S) as connection:
        connection.sendall(copy_channel.REQUEST.pack(0, 0))
        with contextlib.suppress(ConnectionError):
            assert len(connection.recv(1 << 16, socket.MSG_WAITALL)) < 20, "an alert of TLS"
    assert is_received(sender)


@contextlib.contextmanager
def holding(sender: Serving, count: int, host: str) -> Iterator[None]:
    """Strangers who connect, say nothing, and connect again whenever they are cut."""
    stop, held = threading.Event(), set()

    def hold(number: int) -> None:
        while not stop.is_set():
            with (
                contextlib.suppress(OSError),
                socket.create_connection(
                    ("127.0.0.1", sender.port), timeout=HANG_S, source_address=(host, 0)
                ) as connection,
            ):
                held.add(number)
                connection.settimeout(0.5)
                while not stop.is_set():
                    with contextlib.suppress(TimeoutError):
                        if not connection.recv(1 << 16):
                            break

    threads = [threading.Thread(target=hold, args=(n,), daemon=True) for n in range(count)]
    for thread in threads:
        thread.start()
    try:
        until(lambda: len(held) == count, what="all strangers are connected")
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join(HANG_S)


@pytest.mark.parametrize("host", [ELSEWHERE, "127.0.0.1"], ids=["elsewhere", "same address"])
def test_strangers_who_say_nothing_keep_no_receiver_out(sender, host):
    with holding(sender, 130, host):
        assert is_received(sender)


def test_who_drips_has_no_more_time_than_who_is_silent(sender, monkeypatch):
    monkeypatch.setattr(copy_channel, "PROOF_S", 1.0)
    record = b"\x16\x03\x01\x02\x00"  # 512 bytes of a greeting
    with socket.create_connection(("127.0.0.1", sender.port), timeout=HANG_S) as connection:
        connection.settimeout(0.1)
        for byte in record + b"\x01" * 500:
            try:
                connection.sendall(bytes([byte]))
                if connection.recv(1 << 16) == b"":
                    return
            except TimeoutError:
                continue
            except ConnectionError:
                return
    raise AssertionError("it was never cut")


def test_a_sender_without_receivers_ends_although_strangers_connect(sender):
    sender.sender.idle_s = 0.5
    with holding(sender, 8, ELSEWHERE):
        until(lambda: not sender.thread.is_alive(), 30, "the sender has ended")


def test_a_receiver_keeps_its_sender_however_long_it_takes(sender):
    """Once it has proved the secret: it need not say anything more."""
    with sender.channel().connected("127.0.0.1", "spark1") as stream:
        until(lambda: sender.sender._proved, what="the receiver has proved the secret")
        sender.sender.idle_s = 0.0
        for _ in range(3):  # it goes round and round, and does not end
            with socket.create_connection(("127.0.0.1", sender.port), timeout=HANG_S) as other:
                until(lambda: sender.sender._unproved, what="another one is taken in")
                with contextlib.suppress(ConnectionError):
                    other.sendall(b"x" * 64)
                    other.recv(1)
        assert sender.thread.is_alive()
        stream.request(0, 0)
        assert sum(map(len, stream.answered(memoryview(bytearray(1000)))))
    until(lambda: not sender.thread.is_alive(), what="the sender has ended")


def test_the_oldest_stranger_goes_for_a_new_connection(sender, monkeypatch):
    monkeypatch.setattr(copy_channel, "STRANGERS", 2)
    monkeypatch.setattr(copy_channel, "PROOF_S", FAR_S)
    with contextlib.ExitStack() as stack:
        held = []
        for number in range(3):
            address = ("127.0.0.1", sender.port)
            held.append(stack.enter_context(socket.create_connection(address, timeout=HANG_S)))
            until(lambda n=number: len(sender.sender._unproved) == min(n + 1, 2), what="taken in")
        assert held[0].recv(1) == b""
        assert is_received(sender)
