"""The channel of a copy: connections on which the receiver asks for files and the sender answers.

Both ends prove that they know the token of this copy, which neither of them sends. With encryption
they do so in TLS 1.3, and the receiver accepts no certificate but the one made for this copy.
Without, anyone on the way can read the content, which is still what its hashes say.

A request is the number of a file and the byte to begin at. An answer is a sequence of chunks, each
with its kind and length; an empty one ends it. The receiver is in `copy_receiving`.
"""

from __future__ import annotations

import contextlib
import hmac
import os
import secrets
import selectors
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spark_cluster.node.processes import SEARCH_PATH, Processes
from spark_cluster.node.store.hub_cache import HubCache, is_locked
from spark_cluster.node.store.manifest import Manifest, StoredFile
from spark_cluster.node.values import ResourceError, explain

STALLED_S = 10.0
"""Seconds without a byte after which a connection is given up."""
PROOF_S = 5.0
"""Seconds for the TLS handshake and the proof together, however slowly bytes come."""
KEEPALIVE_S = 5
"""Seconds between probes of a silent connection; after four of them the other end is gone."""
NONCE, PROOF = 32, 32
"""Bytes."""
PIECE = 256 << 10
"""Bytes that are read, hashed and written at a time: few enough to stay in a core's cache."""
LONGEST_REASON = 300
"""Bytes of an error message of the other end."""
NO_CHECK_TIME = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL's x509_vfy.h: the nodes' clocks may differ, and the key of a
certificate is removed with its copy."""

REQUEST, HEADER = struct.Struct(">QQ"), struct.Struct(">cQ")
DATA, LATER, FAILED = b"d", b"l", b"f"
"""Kinds of chunks: content; nothing yet, ask again; an error message."""
DONE = (1 << 64) - 1
"""Requested in place of a file: the receiver has everything."""


class Broken(Exception):
    """A connection has ended or stalled, or the other end does not keep to the protocol."""


class Stranger(Exception):
    """The other end does not belong to this copy."""


class Later(Exception):
    """The sender does not have the file yet."""


class CopyRefused(Exception):
    """The sender cannot give the file; the message is its own."""


class Stream:
    """A connection whose ends have proved the token. All methods raise Broken."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._encrypted = isinstance(connection, ssl.SSLSocket)
        self.wait(STALLED_S)

    def wait(self, patience_s: float) -> None:
        """Set the seconds to wait for a byte; 0 to wait until the other end is gone.

        Without TLS the kernel keeps the limit (socket(7)), so that one call waits for many bytes;
        with a limit of Python's own a call returns after each packet.
        """
        if self._encrypted:
            self._connection.settimeout(patience_s or None)
            return
        self._connection.settimeout(None)
        for option, limit in ((socket.SO_RCVTIMEO, patience_s), (socket.SO_SNDTIMEO, STALLED_S)):
            seconds = struct.pack("ll", int(limit), int(limit % 1 * 1e6))
            self._connection.setsockopt(socket.SOL_SOCKET, option, seconds)

    def prove(self, token: str, *, sender: bool) -> None:
        """Prove the token, and have the other end prove it. Raises Stranger, too."""
        ours = secrets.token_bytes(NONCE)
        self._send(ours)
        nonces = [ours, self._exactly(NONCE)]
        both = b"".join(nonces if sender else reversed(nonces))

        def proof(*, sender: bool) -> bytes:
            side = b"sender" if sender else b"receiver"
            return hmac.digest(token.encode(), b"spark-cluster copy " + side + both, "sha256")

        self._send(proof(sender=sender))
        if not hmac.compare_digest(self._exactly(PROOF), proof(sender=not sender)):
            raise Stranger("it does not know the secret of this copy")

    def request(self, number: int, begin: int) -> None:
        """Ask for a file from a byte on."""
        self._send(REQUEST.pack(number, begin))

    def requested(self) -> tuple[int, int]:
        """Wait for the next request; return the number and the byte to begin at."""
        self.wait(0)
        number, begin = REQUEST.unpack(self._exactly(REQUEST.size))
        self.wait(STALLED_S)
        return number, begin

    def answer(self, kind: bytes, data: bytes | memoryview = b"") -> None:
        """Send a chunk."""
        self._send(HEADER.pack(kind, len(data)))
        self._send(data)

    def answer_file(self, handle: int, begin: int, end: int) -> None:
        """Answer with bytes of an open file; one that cannot be read breaks the connection."""
        if begin < end:
            self._send(HEADER.pack(DATA, end - begin))
        memory = memoryview(bytearray(PIECE))
        try:
            while begin < end:
                if self._encrypted:
                    taken = os.preadv(handle, [memory[: end - begin]], begin)
                    self._send(memory[:taken])
                else:
                    taken = os.sendfile(self._connection.fileno(), handle, begin, end - begin)
                if not taken:
                    raise Broken("the file has become shorter")
                begin += taken
        except OSError as error:
            raise _broken(error) from None
        self.answer(DATA)

    def answered(self, memory: memoryview) -> Iterator[memoryview]:
        """Yield the content of an answer, piece by piece in `memory`.

        Raises:
            Later: the sender does not have the file yet.
            Refused: it cannot give it.
        """
        while True:
            kind, size = HEADER.unpack(self._exactly(HEADER.size))
            if kind == LATER:
                raise Later
            if kind == FAILED:
                reason = self._exactly(min(size, LONGEST_REASON)).decode(errors="replace")
                raise CopyRefused("".join(filter(str.isprintable, reason)))
            if kind != DATA:
                raise Broken("an answer is not understood")
            if not size:
                return
            while size:
                piece = memory[:size]
                self._fill(piece)
                yield piece
                size -= len(piece)

    def leave(self) -> None:
        """Tell the sender that the receiver has everything; one that is gone need not know."""
        with contextlib.suppress(Broken, Later, CopyRefused):
            self.request(DONE, 0)
            next(self.answered(memoryview(bytearray(1))), None)

    def cut(self) -> None:
        """End the connection from any thread; the one that uses it sees its end."""
        cut(self._connection)

    def _exactly(self, size: int) -> bytes:
        data = bytearray(size)
        self._fill(memoryview(data))
        return bytes(data)

    def _fill(self, view: memoryview) -> None:
        flags = 0 if self._encrypted else socket.MSG_WAITALL
        try:
            while view:
                taken = self._connection.recv_into(view, 0, flags)
                if not taken:
                    raise Broken("the connection was closed")
                view = view[taken:]
        except OSError as error:
            raise _broken(error) from None

    def _send(self, data: bytes | memoryview) -> None:
        try:
            self._connection.sendall(data)
        except OSError as error:
            raise _broken(error) from None


def _broken(error: OSError) -> Broken:
    if isinstance(error, BlockingIOError):  # a limit that the kernel keeps
        return Broken("timed out")
    return Broken(error.strerror or str(error))


def cut(connection: socket.socket) -> None:
    """End a connection from any thread."""
    with contextlib.suppress(OSError):  # it has ended meanwhile
        # Not SSLSocket's method: its thread would go on without TLS.
        socket.socket.shutdown(connection, socket.SHUT_RDWR)


@dataclass(frozen=True)
class CopyChannel:
    """One end of a copy.

    Args:
        tls: None for no encryption.
        sender: which end it is.
    """

    port: int
    token: str = field(repr=False)
    tls: ssl.SSLContext | None
    sender: bool

    @classmethod
    def of_sender(cls, secrets: Mapping[str, Any], folder: Path, *, encrypted: bool) -> CopyChannel:
        """Return the end whose `make_secrets` returned these, with its key in the folder."""
        tls = None
        if encrypted:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            tls.minimum_version, tls.num_tickets = ssl.TLSVersion.TLSv1_3, 0
            tls.load_cert_chain(folder / "certificate", folder / "key")
        return cls(int(secrets["port"]), str(secrets["token"]), tls, sender=True)

    @classmethod
    def of_receiver(cls, secrets: Mapping[str, Any], *, encrypted: bool) -> CopyChannel:
        """Return the other end."""
        tls = None
        if encrypted:
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            tls.minimum_version, tls.check_hostname = ssl.TLSVersion.TLSv1_3, False
            tls.verify_flags |= NO_CHECK_TIME
            tls.load_verify_locations(cadata=str(secrets["certificate"]))
        return cls(int(secrets["port"]), str(secrets["token"]), tls, sender=False)

    def wrapped(self, connection: socket.socket) -> socket.socket:
        """Prepare a new connection; no byte is sent yet. Raises OSError."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
            connection.setsockopt(socket.IPPROTO_TCP, option, KEEPALIVE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
        if self.tls is None:
            return connection
        return self.tls.wrap_socket(
            connection, server_side=self.sender, do_handshake_on_connect=False
        )

    def proved(self, connection: socket.socket) -> Stream:
        """Return the stream of a wrapped connection once both ends have proved the token.

        Raises:
            Stranger: the other end is not of this copy.
            Broken: it ends or says too little within PROOF_S.
        """
        timer = threading.Timer(PROOF_S, cut, (connection,))
        timer.daemon = True
        timer.start()
        try:
            stream = Stream(connection)
            if isinstance(connection, ssl.SSLSocket):
                connection.do_handshake()
            stream.prove(self.token, sender=self.sender)
        except ssl.SSLCertVerificationError:
            raise Stranger("it has another certificate") from None
        except OSError as error:
            raise _broken(error) from None
        finally:
            timer.cancel()
        return stream

    @contextlib.contextmanager
    def connected(self, address: str, sender: str) -> Iterator[Stream]:
        """Yield a stream to the sender.

        Raises:
            ResourceError: someone else answers.
            Broken: nobody answers in time.
        """
        try:
            connection = socket.create_connection((address, self.port), timeout=STALLED_S)
            connection = self.wrapped(connection)
        except OSError as error:
            raise _broken(error) from None
        with connection:
            try:
                stream = self.proved(connection)
            except Stranger as error:
                raise ResourceError(
                    f"what answers at {address} port {self.port} is not {sender}: {error}",
                    "nothing of it was kept; another program may use the port",
                ) from None
            yield stream


def make_secrets(folder: Path, processes: Processes) -> dict[str, str]:
    """Make the token and the certificate of a copy, and in the sender's folder its key; return what
    the receiver needs.

    Raises:
        ResourceError: openssl fails.
    """
    argv = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
    words = ("-nodes", "-subj", "/CN=spark-cluster copy", "-days", "365")
    places = ("-keyout", f"{folder}/key", "-out", f"{folder}/certificate")
    environment = {"PATH": SEARCH_PATH, "LANG": "C.UTF-8"}
    made = processes.run((*argv, *words, *places), env=environment, timeout=30.0, umask=0o077)
    made.check("making a certificate for a copy")
    certificate = (folder / "certificate").read_text()
    return {"token": secrets.token_hex(32), "certificate": certificate}


# The sender of a copy: listens on a node's own addresses, and gives receivers what is copied.
#
# It knows a list of files; a receiver names one by its number in the list and never by a path. Each
# file is opened beneath the model's folder without following a link (node/beneath.py).

IDLE_S = 60.0
"""Seconds without a receiver after which it ends; a connection without proof does not count."""
WRITER_GONE_S = 10.0
"""Seconds without a writer of the model after which what is not there is not waited for."""
LIMIT_S = 24 * 3600.0
LOOK_S = 0.2
STRANGERS = 300
"""Connections without proof at a time. One more ends the oldest: a receiver needs milliseconds, and
a stranger only loses its place."""
RECEIVERS = 128
"""Connections with proof at a time."""

Give = Callable[[Stream, int, int], None]
"""Answers a request for a file by its number, from a byte on. It may raise OSError before its first
chunk."""


class Sender:
    """The sender of one copy; it listens once it is made.

    Args:
        addresses: all of them must be this node's own.
        spare: those that are not this node's own are left out: the address by which a user knows a
            node may be that of a router in front of it.

    Raises:
        ResourceError: an address is not this node's own, or its port is taken.
    """

    def __init__(
        self, channel: CopyChannel, addresses: Sequence[str], spare: Sequence[str], give: Give
    ) -> None:
        self.idle_s = IDLE_S
        self._channel, self._give = channel, give
        self._ended = threading.Event()
        self._unproved: dict[socket.socket, None] = {}
        self._proved: set[socket.socket] = set()
        self._last = time.monotonic()
        self._listening = [_listening(address, channel.port) for address in addresses]
        for address in set(spare) - set(addresses):
            with contextlib.suppress(ResourceError):
                self._listening.append(_listening(address, channel.port))

    def run(self) -> None:
        """Serve until a receiver has everything, or none has come for a while."""
        until = time.monotonic() + LIMIT_S
        with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
            for listening in self._listening:
                selector.register(stack.enter_context(listening), selectors.EVENT_READ, listening)
            while not self._ended.is_set() and time.monotonic() < until and not self._is_idle():
                for key, _ in selector.select(LOOK_S):
                    with contextlib.suppress(OSError):  # the other end is gone again
                        self._accept(key.data)
        for connection in (*self._unproved, *self._proved):
            cut(connection)

    def end(self) -> None:
        """Have `run` end."""
        self._ended.set()

    def _is_idle(self) -> bool:
        return not self._proved and time.monotonic() - self._last > self.idle_s

    def _accept(self, listening: socket.socket) -> None:
        connection = self._channel.wrapped(listening.accept()[0])
        if len(self._unproved) >= STRANGERS:
            oldest, *_ = self._unproved
            cut(oldest)
        self._unproved[connection] = None
        threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Answer one connection until its other end closes it."""
        with contextlib.suppress(Broken, Stranger), connection:
            try:
                stream = self._channel.proved(connection)
            finally:
                del self._unproved[connection]
            if len(self._proved) >= RECEIVERS:
                return
            self._proved.add(connection)
            try:
                self._answer(stream)
            finally:
                self._last = time.monotonic()
                self._proved.remove(connection)

    def _answer(self, stream: Stream) -> None:
        while not self._ended.is_set():
            number, begin = stream.requested()
            if number == DONE:
                self.end()
                stream.answer(DATA)
                return
            try:
                self._give(stream, number, begin)
            except OSError as error:
                stream.answer(FAILED, explain(error).encode())


def _listening(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listening = socket.create_server((host, port), family=family, backlog=RECEIVERS)
    except OSError as error:
        raise ResourceError(
            f"nothing can be sent from {host} port {port}: {error.strerror}",
            "another copy may be running; `spark-cluster facts` shows the node's addresses",
        ) from error
    listening.setblocking(False)
    return listening


class StoredFiles:
    """The files of a manifest, as `Give`. One that is not there yet may still be on its way."""

    def __init__(self, cache: HubCache, manifest: Manifest) -> None:
        self._cache, self._manifest = cache, manifest
        self._files = tuple(manifest.blobs.values())
        self._last_written = time.monotonic()

    def __call__(self, stream: Stream, number: int, begin: int) -> None:
        """Answer with a file from a byte on."""
        if number >= len(self._files) or begin > self._files[number].size:
            raise Broken("something is asked for that is not of this copy")
        file = self._files[number]
        try:
            handle = self._cache.open(self._manifest.repository, file)
        except FileNotFoundError:
            self._must_be_written(file)
            stream.answer(LATER)
            return
        try:
            stream.answer_file(handle, begin, file.size)
        finally:
            os.close(handle)

    def _must_be_written(self, file: StoredFile) -> None:
        """Raise OSError where nobody has written into the repository for a while."""
        if is_locked(self._cache, self._manifest.repository):
            self._last_written = time.monotonic()
        elif time.monotonic() - self._last_written > WRITER_GONE_S:
            raise OSError(0, "its download there has ended without it", file.path)
