"""The channel of a copy: connections on which the receiver asks for files and the sender answers.

Each connection begins in TLS 1.3. Both ends have the key and the certificate that were made for
this copy, show the certificate, and accept no other one: so each proves to the other that it knows
the key, which neither of them sends. Without encryption both leave TLS after that; anyone on the
way can then read the content, which is still what its hashes say.

A request is the number of a file and the byte to begin at. An answer is a sequence of chunks, each
with its kind and length; an empty one ends it. The receiver is in `copy_receiving`.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_cluster.node.processes import Processes, environment
from spark_cluster.node.safe_paths import closing_handle
from spark_cluster.node.store.download import Later
from spark_cluster.node.store.hub_cache import HubCache, is_locked
from spark_cluster.node.store.manifest import Manifest, StoredFile
from spark_cluster.node.values import ResourceError, explain

STALLED_S = 10.0
"""Seconds without a byte after which a connection is given up."""
PROOF_S = 5.0
"""Seconds for a connection, and for its proof, which is the handshake of TLS, however slowly bytes
come."""
KEEPALIVE_S = 5
"""Seconds between probes of a silent connection; after four of them the other end is gone."""
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


class CopyRefused(Exception):
    """The sender cannot give the file; the message is its own."""


class Stream:
    """A connection whose ends have proved the key. All methods raise Broken."""

    def __init__(self, connection: ssl.SSLSocket, *, encrypted: bool) -> None:
        self._connection = connection
        self._encrypted = encrypted
        self.wait(STALLED_S)

    def wait(self, patience_s: float) -> None:
        """Set the seconds to wait for a byte; 0 to wait until the other end is gone."""
        self._connection.settimeout(patience_s or None)

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
        try:
            if self._encrypted:
                memory = memoryview(bytearray(PIECE))
                while begin < end and (taken := os.preadv(handle, [memory[: end - begin]], begin)):
                    self._send(memory[:taken])
                    begin += taken
            elif begin < end:
                with open(handle, "rb", buffering=0, closefd=False) as opened:
                    begin += self._connection.sendfile(opened, begin, end - begin)
        except OSError as error:
            raise _broken(error) from None
        if begin < end:
            raise Broken("the file has become shorter")
        self.answer(DATA)

    def answered(self, memory: memoryview) -> Iterator[memoryview]:
        """Yield the content of an answer, piece by piece in `memory`.

        Raises:
            Later: the sender does not have the file yet.
            CopyRefused: it cannot give it.
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

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def cut(self) -> None:
        """End the connection from any thread; the one that uses it sees its end."""
        cut(self._connection)

    def _exactly(self, size: int) -> bytes:
        data = bytearray(size)
        self._fill(memoryview(data))
        return bytes(data)

    def _fill(self, view: memoryview) -> None:
        try:
            while view:
                taken = self._connection.recv_into(view)
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
        sender: which end it is.
        encrypted: TLS lasts as long as the connection, and not for the proof only.
    """

    port: int
    tls: ssl.SSLContext
    sender: bool
    encrypted: bool

    @classmethod
    def of(cls, secrets: Mapping[str, Any], *, sender: bool, encrypted: bool) -> CopyChannel:
        """Return an end.

        Args:
            secrets: what `make_secrets` returned, and the `port`.
        """
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if sender else ssl.PROTOCOL_TLS_CLIENT)
        tls.minimum_version, tls.check_hostname = ssl.TLSVersion.TLSv1_3, False
        tls.verify_mode = ssl.CERT_REQUIRED
        tls.verify_flags |= NO_CHECK_TIME
        if sender:
            tls.num_tickets = 0
        with os.fdopen(os.memfd_create("key"), "wb") as own:  # OpenSSL reads it from a file only
            own.write(str(secrets["key"]).encode())
            own.flush()
            path = f"/proc/self/fd/{own.fileno()}"
            tls.load_verify_locations(path)
            tls.load_cert_chain(path)
        return cls(int(secrets["port"]), tls, sender, encrypted)

    def wrapped(self, connection: socket.socket) -> ssl.SSLSocket:
        """Prepare a new connection; no byte is sent yet. Raises OSError."""
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
            connection.setsockopt(socket.IPPROTO_TCP, option, KEEPALIVE_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 4)
        return self.tls.wrap_socket(
            connection, server_side=self.sender, do_handshake_on_connect=False
        )

    def proved(self, connection: ssl.SSLSocket) -> Stream:
        """Return the stream of a wrapped connection once both ends have proved the key.

        Raises:
            Stranger: the other end is not of this copy.
            Broken: it ends or says too little within PROOF_S.
        """
        timer = threading.Timer(PROOF_S, cut, (connection,))
        timer.daemon = True
        timer.start()
        try:
            connection.settimeout(PROOF_S)
            connection.do_handshake()
            if not self.encrypted:
                connection.unwrap()
        except ssl.SSLCertVerificationError:
            raise Stranger("it has another certificate") from None
        except OSError as error:
            raise _broken(error) from None
        finally:
            timer.cancel()
        return Stream(connection, encrypted=self.encrypted)

    def connect(self, address: str, sender: str) -> Stream:
        """Return a stream to the sender.

        Raises:
            ResourceError: someone else answers.
            Broken: nobody answers in time.
        """
        try:
            to = (address, self.port)
            connection = self.wrapped(socket.create_connection(to, timeout=PROOF_S))
        except OSError as error:
            raise _broken(error) from None
        try:
            return self.proved(connection)
        except BaseException as error:
            connection.close()
            if not isinstance(error, Stranger):
                raise
            raise ResourceError(
                f"what answers at {address} port {self.port} is not {sender}: {error}",
                "nothing of it was kept; another program may use the port",
            ) from None

    @contextlib.contextmanager
    def connected(self, address: str, sender: str) -> Iterator[Stream]:
        """Yield a stream to the sender, as `connect` returns it."""
        with contextlib.closing(self.connect(address, sender)) as stream:
            yield stream


def make_secrets(folder: Path, processes: Processes) -> dict[str, str]:
    """Make the `key` of a copy with its certificate, in PEM, which both ends need.

    Args:
        folder: of this copy; only root can open it.

    Raises:
        ResourceError: openssl fails.
    """
    own = folder / "key.pem"
    argv = ("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256")
    words = ("-nodes", "-subj", "/CN=spark-cluster copy", "-days", "365")
    command = (*argv, *words, "-keyout", str(own), "-out", str(own))  # one file for both
    made = processes.run(command, env=environment(), timeout=30.0, umask=0o077)
    made.check("making a certificate for a copy")
    return {"key": own.read_text()}


# The sender of a copy: listens on a node's own addresses, and gives receivers what is copied.
#
# It knows a list of files; a receiver names one by its number in the list and never by a path. Each
# file is opened beneath the model's folder without following a link (node/beneath.py).

IDLE_S = 60.0
"""Seconds without a receiver after which it ends; a connection without proof does not count."""
WRITER_GONE_S = 15.0
"""Seconds without a writer of the model after which what is not there is not waited for: a pull
that begins at the same time has begun by then."""
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

    def _serve(self, connection: ssl.SSLSocket) -> None:
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
        with closing_handle(handle):
            stream.answer_file(handle, begin, file.size)

    def _must_be_written(self, file: StoredFile) -> None:
        """Raise OSError where nobody has written into the repository for a while."""
        if is_locked(self._cache, self._manifest.repository):
            self._last_written = time.monotonic()
        elif time.monotonic() - self._last_written > WRITER_GONE_S:
            raise OSError(0, "its download there has ended without it", file.path)
