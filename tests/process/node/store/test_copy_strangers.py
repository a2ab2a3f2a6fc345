"""Who connects to a copy's sender without its key: gets nothing, and keeps no receiver out."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from copy_ends import Serving
from model_content import content, model
from waiting import FAR_S, HANG_S, until

from spark_cluster.node.processes import Processes
from spark_cluster.node.store import copy_channel
from spark_cluster.node.store.copy_channel import DONE, Broken, Stranger, Stream
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.verify import verify
from spark_cluster.node.values import ResourceError

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


@contextlib.contextmanager
def handshaken(sender: Serving) -> Iterator[socket.socket]:
    """A connection to the sender, with TLS where it has it, and without a proof."""
    with sender.channel().wrapped(
        socket.create_connection(("127.0.0.1", sender.port), timeout=HANG_S)
    ) as connection:
        if isinstance(connection, ssl.SSLSocket):
            connection.do_handshake()
        yield connection


def test_without_the_key_no_byte_of_the_model_is_sent(sender, tmp_path):
    """With a secret of another copy, which a stranger can make; all else is the sender's."""
    (tmp_path / "stranger").mkdir()
    token = copy_channel.make_secrets(tmp_path / "stranger", Processes())["token"]
    with handshaken(sender) as connection:
        stream = Stream(connection)
        with pytest.raises(Stranger, match="does not know the secret"):
            stream.prove(token, sender=False)
        for number in (0, DONE):
            with pytest.raises(Broken):
                stream.request(number, 0)
                list(stream.answered(memoryview(bytearray(1))))
    assert sender.thread.is_alive(), "a stranger cannot say that the copy is done"
    assert is_received(sender)


def test_who_listens_to_a_receiver_does_not_get_the_secret(sender, tmp_path, monkeypatch):
    """Nor can it be sent again: the proof is of nonces of this connection."""
    heard = list[bytes]()
    monkeypatch.setattr(copy_channel, "PROOF_S", 1.0)
    with socket.create_server((ELSEWHERE, sender.port)) as mute:
        receiver = sender.receiver(
            HubCache(tmp_path / "t", tmp_path / "o"), (ELSEWHERE,), silent_s=1.0, streams=1
        )
        with contextlib.suppress(ResourceError):
            receiver.run()
        mute.settimeout(HANG_S)
        near, _ = mute.accept()
        near.settimeout(1.0)
        with near, contextlib.suppress(OSError):
            near.sendall(bytes(32))
            while data := near.recv(1 << 16):
                heard.append(data)
    assert heard
    assert sender.secrets["token"].encode() not in b"".join(heard)


def test_a_proof_of_one_end_is_none_of_the_other(sender):
    """A stranger sends back what the sender has sent: its nonce, and its proof."""
    with handshaken(sender) as connection:
        for _ in range(2):
            data = b""
            while len(data) < 32:
                data += connection.recv(32 - len(data))
            connection.sendall(data)
        with contextlib.suppress(ConnectionError):
            assert connection.recv(1) == b""
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
    record = b"\x16\x03\x01\x02\x00" if sender.encrypted else b""  # 512 bytes of a greeting
    with socket.create_connection(("127.0.0.1", sender.port), timeout=HANG_S) as connection:
        if not sender.encrypted:
            connection.recv(32, socket.MSG_WAITALL)
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
        if not sender.encrypted:
            held[0].recv(32, socket.MSG_WAITALL)
        assert held[0].recv(1) == b""
        assert is_received(sender)
