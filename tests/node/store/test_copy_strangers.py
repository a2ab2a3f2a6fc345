"""Who connects to a copy's sender without its token: gets nothing, and keeps no receiver out."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from models import certificate, content, model
from waiting import HANG_S, until

from spark_cluster.node.store import unproved, wire
from spark_cluster.node.store.blob_client import BlobClient, connected
from spark_cluster.node.store.blob_server import BlobServer
from spark_cluster.node.store.hub_cache import HubCache
from spark_cluster.node.store.manifest import Manifest
from spark_cluster.node.store.verify import verify

pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")

MODEL = {"config.json": b"{}", "model.safetensors": content(100_000, 1)}
TOKEN = "t" * 64
ELSEWHERE = "127.0.0.2"
"""Another address than the receiver's."""


class Sender:
    """A sender that runs, its receivers, and those who connect to it without the token."""

    def __init__(self, folder: Path, *, encrypted: bool) -> None:
        self.folder = folder
        self.manifest: Manifest = model(folder / "source", MODEL)
        self.pem, key = certificate(folder)
        self.encrypted = encrypted
        tls = wire.sender_tls(str(self.pem), str(key)) if encrypted else None
        self.server = BlobServer(
            HubCache(folder / "source", folder / "ours"), self.manifest, TOKEN, tls
        )
        self.thread = threading.Thread(
            target=self.server.run, args=([("127.0.0.1", 0)],), daemon=True
        )

    def start(self) -> None:
        self.thread.start()
        assert self.server.ready.wait(HANG_S)

    @property
    def address(self) -> tuple[str, int]:
        return self.server.bound[0]

    def receiver(self) -> BlobClient:
        target = HubCache(self.folder / "target", self.folder / "ours-target")
        made = BlobClient(target, self.manifest, TOKEN, [self.address], kept_free=0)
        made.tls = wire.receiver_tls(self.pem.read_text()) if self.encrypted else None
        return made

    def is_received(self) -> bool:
        """Return whether a receiver gets the whole model."""
        moved = self.receiver().run().moved
        sound = verify(
            HubCache(self.folder / "target", self.folder / "ours-target"), self.manifest
        ).sound
        return sound and moved == self.manifest.size

    @contextlib.contextmanager
    def stranger(self) -> Iterator[socket.socket]:
        """A connection of anyone, as far as one gets without the token: TLS asks for none."""
        connection = socket.create_connection(self.address, timeout=HANG_S)
        with connection:
            stream = connection
            if self.encrypted:
                anyone = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                anyone.check_hostname, anyone.verify_mode = False, ssl.CERT_NONE
                stream = anyone.wrap_socket(connection)
            with stream:
                yield stream


@pytest.fixture(params=[True, False], ids=["tls", "plain"])
def sender(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sender]:
    made = Sender(tmp_path, encrypted=request.param)
    yield made
    made.server.ended.set()
    if made.thread.ident is not None:
        made.thread.join(HANG_S)


def next_of(stream: socket.socket) -> bytes:
    """Return what comes next; nothing when the other side closes the connection."""
    with contextlib.suppress(ConnectionError, ssl.SSLError):
        return stream.recv(1 << 16)
    return b""


ANSWERS: dict[str, Callable[[str], dict[str, str]]] = {
    "no proof": lambda _theirs: {"nonce": "n"},
    "a proof with another token": lambda theirs: {
        "nonce": "n",
        "proof": wire._proof("another", "receiver", theirs, "n"),
    },
    "the sender's own nonce back": lambda theirs: {"nonce": theirs, "proof": theirs},
    "a proof that is not text": lambda _theirs: {"nonce": "\ud800", "proof": "\ud800"},
}


@pytest.mark.parametrize("answer", ANSWERS.values(), ids=ANSWERS)
def test_without_the_token_no_byte_of_the_model_and_no_proof_is_sent(sender, answer):
    sender.start()
    with sender.stranger() as stream:
        theirs = str(wire.receive(stream)["nonce"])
        file = sender.manifest.files[-1]
        with contextlib.suppress(OSError):  # it may have hung up already
            wire.send(stream, answer(theirs))
            wire.send(stream, {"blob": file.blob, "begin": 0, "end": file.size})
        assert next_of(stream) == b""
    with sender.stranger() as stream:
        wire.receive(stream)
        with contextlib.suppress(OSError):
            wire.send(stream, {"blob": file.blob, "begin": 0, "end": file.size})
            wire.send(stream, {"done": True})
        assert next_of(stream) == b""
    assert sender.server.sent == 0
    assert not sender.server.ended.is_set(), "a stranger cannot say that the copy is done"
    assert sender.is_received()


@contextlib.contextmanager
def holding(sender: Sender, count: int, host: str) -> Iterator[None]:
    """Strangers who connect, say nothing, and connect again whenever they are cut."""
    stop, held = threading.Event(), set()

    def hold(number: int) -> None:
        while not stop.is_set():
            with (
                contextlib.suppress(OSError),
                socket.create_connection(
                    sender.address, timeout=HANG_S, source_address=(host, 0)
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
    sender.start()
    with holding(sender, 130, host):
        assert sender.is_received()


def hello(sender: Sender) -> bytes:
    """Return what a receiver says first, as far as it needs no token."""
    if not sender.encrypted:
        return (60_000).to_bytes(4, "big") + b" " * 60_000
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    said = context.wrap_bio(incoming, outgoing, server_hostname="x" * 60)
    with contextlib.suppress(ssl.SSLWantReadError):
        said.do_handshake()
    return outgoing.read()


def test_who_drips_has_no_more_time_than_who_is_silent(sender, monkeypatch):
    monkeypatch.setattr(unproved, "PROOF_S", 1.0)
    sender.start()
    with socket.create_connection(sender.address, timeout=0.2) as connection:
        for byte in hello(sender)[:200]:
            try:
                connection.sendall(bytes([byte]))
                if (said := connection.recv(1 << 16)) == b"":
                    return
                assert len(said) < 100, "a nonce at most"
            except TimeoutError:
                continue
            except ConnectionError:
                return
    raise AssertionError("it was never cut")


def test_a_sender_without_receivers_ends_although_strangers_connect(sender):
    sender.server.idle_s = 0.5
    sender.start()
    with holding(sender, 8, ELSEWHERE):
        until(lambda: not sender.thread.is_alive(), 30, "the sender has ended")


def test_a_receiver_keeps_its_sender_however_long_it_takes(sender):
    sender.start()
    with connected(sender.receiver(), sender.address) as stream:
        file = sender.manifest.files[-1]
        wire.send(stream, {"blob": file.blob, "begin": 0, "end": 10})
        assert wire.receive(stream) == {"bytes": 10}
        sender.server.idle_s = 0.0
        for _ in range(3):  # it goes round and round, and does not end
            with sender.stranger() as other:
                wire.receive(other)
        assert sender.thread.is_alive()
    until(lambda: not sender.thread.is_alive(), what="the sender has ended")


def test_one_address_takes_places_from_no_other():
    """Of the unproved connections of one address the oldest goes for a new one."""
    waiting, most = unproved.Unproved(), unproved.MOST_OF_ONE
    with contextlib.ExitStack() as stack:
        first, *others = (stack.enter_context(socket.socket()) for _ in range(most + 2))
        assert not waiting.add(first, "a")
        assert [waiting.add(one, "b") for one in others] == [False] * most + [True]
        assert not waiting.take_out(others[0])
        assert waiting.take_out(others[1])
        assert waiting.take_out(first)


def test_many_addresses_take_a_number_of_places_together():
    waiting, most = unproved.Unproved(), unproved.MOST
    with contextlib.ExitStack() as stack:
        all_of = [stack.enter_context(socket.socket()) for _ in range(most + 1)]
        cut = [waiting.add(one, str(number)) for number, one in enumerate(all_of)]
        assert cut == [False] * most + [True]
        assert not waiting.take_out(all_of[0])
        assert waiting.take_out(all_of[1])
