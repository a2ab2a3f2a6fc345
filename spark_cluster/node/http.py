"""An HTTP request from this node, with no proxy and no redirect, limited in time and size."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import os
import queue
import socket
import ssl
import struct
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from spark_cluster.node.values import looks

# HTTPS to a server whose certificate is known: exactly that one is accepted.

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


def fingerprint(path: Path) -> str:
    """SHA-256, in hex, of the first certificate of a PEM file.

    Raises:
        OSError: the file cannot be read, or holds none.
    """
    text = path.read_text(encoding="ascii", errors="replace")
    begin, end = text.find(_BEGIN), text.find(_END)
    if begin < 0 or end < begin:
        raise OSError(f"{path} holds no certificate")
    try:
        der = ssl.PEM_cert_to_DER_cert(text[begin : end + len(_END)])
    except ValueError:
        raise OSError(f"{path} holds no certificate") from None
    return hashlib.sha256(der).hexdigest()


class PinnedConnection(http.client.HTTPSConnection):
    """A connection to the one server that presents a certificate.

    Args:
        expected: SHA-256 of its certificate, in hex.
        timeout: of each step, seconds.
    """

    def __init__(self, host: str, port: int | None, expected: str, *, timeout: float) -> None:
        # The certificate itself is compared, which says more than who signed it and its names.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        super().__init__(host, port, timeout=timeout, context=context)
        self._expected = expected

    def connect(self) -> None:
        super().connect()
        _compare(self.sock, self._expected)


def _compare(connection: socket.socket, expected: str) -> None:
    """Before anything is sent: the key goes nowhere else."""
    assert isinstance(connection, ssl.SSLSocket)  # noqa: S101  (what HTTPSConnection makes)
    shown = hashlib.sha256(connection.getpeercert(binary_form=True) or b"").hexdigest()
    if shown != expected:
        connection.close()
        raise ssl.SSLError(
            f"another certificate was presented, its SHA-256 is {shown}; expected {expected}"
        )


BODY_LIMIT = 16 * 1024 * 1024
"""Bytes of an answer's body that are taken."""

BLOCK = 64 * 1024
"""Bytes read at once."""

LISTENS = "0A"
"""State of a socket in /proc/net/tcp (source: linux/include/net/tcp_states.h)."""

ACCEPTED_S = 3.0
"""Seconds within which a server accepts a connection, if it is to be given a token."""

LONGEST_HEADER = 4000
"""Characters of a header of an answer that are returned."""

Reply = dict[str, Any]


def ask(request: Mapping[str, Any], root: Path = Path("/")) -> Reply:
    """Status and body of `url`; status 0 and a `reason` when there is no whole answer.

    Args:
        request: url, and perhaps method, headers, body (text, or bytes as base64 in `body_base64`),
            timeout (seconds for all of it: looking up the name, connecting, sending, and the
            answer to its last byte), and two files of this node: `bearer_file`, whose content is
            the bearer token, on the loopback for a program of root's only (without the file the
            request goes without a token), and `certificate`, in PEM form (exactly this one is
            accepted, and its SHA-256 is returned); `encoding` of the body (latin-1 keeps every
            byte), and `keep`, names of headers of the answer that are returned.
        root: where the node's files begin.
    """
    timeout = float(request.get("timeout", 10.0))
    call = _Call(request, root, time.monotonic() + timeout)
    threading.Thread(target=call.make, daemon=True).start()
    try:
        return call.reply.get(timeout=timeout)
    except queue.Empty:
        call.abandon()
        return _no_answer(f"no whole answer within {timeout:g} s")


class _Call:
    """A request in a thread of its own: looking up a name knows no limit, and a server that drips
    keeps each limit of a socket."""

    def __init__(self, request: Mapping[str, Any], root: Path, until: float) -> None:
        self.reply: queue.Queue[Reply] = queue.Queue()
        self._request = request
        self._root = root
        self._until = until
        self._lock = threading.Lock()
        self._abandoned = False
        self._socket: socket.socket | None = None
        """Of the connection, in a handle of its own: http.client gives away the one that it has,
        to TLS and then to the answer."""

    def make(self) -> None:
        try:
            self.reply.put(self._make())
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, TimeoutError) and error.errno is None:
                return  # of a socket, whose limit is the whole one: who asks says so
            self.reply.put(_no_answer(str(error) or type(error).__name__))
        except ValueError:  # its text would show the header, which may be a key
            self.reply.put(
                _no_answer("the address or a header has characters that HTTP cannot carry")
            )
        finally:
            with self._lock:
                if self._socket is not None:
                    self._socket.close()
                    self._socket = None

    def abandon(self) -> None:
        """Have the thread end soon."""
        with self._lock:
            self._abandoned = True
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    self._socket.shutdown(socket.SHUT_RDWR)

    def _connect(self, *args: Any, **options: Any) -> socket.socket:
        """In place of `socket.create_connection`."""
        made = socket.create_connection(*args, **options)
        with self._lock:
            if self._abandoned:
                made.close()
                raise OSError("the answer is no longer awaited")
            self._socket = made.dup()
        return made

    def _make(self) -> Reply:
        where = urlsplit(self._request["url"])
        if where.scheme not in ("http", "https") or where.hostname is None:
            raise ValueError(where.scheme)
        there, left = (where.hostname, where.port), max(0.1, self._until - time.monotonic())
        certificate = self._file("certificate")
        seen = {}
        connection: http.client.HTTPConnection
        if certificate is not None:
            seen["certificate"] = fingerprint(certificate)
            connection = PinnedConnection(*there, seen["certificate"], timeout=left)
        elif where.scheme == "https":
            connection = http.client.HTTPSConnection(*there, timeout=left)
        else:
            connection = http.client.HTTPConnection(*there, timeout=left)
        connection._create_connection = self._connect  # type: ignore[attr-defined]
        body = _body(self._request)
        bearer = _bearer(self._file("bearer_file"))
        headers = {"Connection": "close", **self._request.get("headers", {}), **bearer}
        if body is not None:
            headers.setdefault("Content-Type", "application/x-www-form-urlencoded")
        path = f"{where.path or '/'}?{where.query}" if where.query else where.path or "/"
        with contextlib.closing(connection):
            connection.connect()
            if bearer and where.hostname == "127.0.0.1":
                must_be_roots(connection.sock)
            connection.request(self._request.get("method", "GET"), path, body, headers)
            answer = connection.getresponse()
            wanted = self._request.get("keep", ())
            kept = {name: answer.getheader(name, "")[:LONGEST_HEADER] for name in wanted}
            told = {"headers": kept} if kept else {}
            return {**_read(answer, self._request.get("encoding", "utf-8")), **told, **seen}

    def _file(self, name: str) -> Path | None:
        """Return the file that the request names; None where it names none."""
        path = self._request.get(name)
        return self._root / path.lstrip("/") if path else None


def _body(request: Mapping[str, Any]) -> bytes | None:
    if "body_base64" in request:
        return base64.b64decode(request["body_base64"])
    text = request.get("body")
    return None if text is None else str(text).encode()


def _read(answer: http.client.HTTPResponse, encoding: str) -> Reply:
    data = bytearray()
    while part := answer.read(BLOCK):
        data += part
        if len(data) > BODY_LIMIT:
            return _no_answer(
                f"the answer (status {answer.status}) has more than {BODY_LIMIT >> 20} MiB"
            )
    return {"status": answer.status, "body": data.decode(encoding, errors="replace")}


def _no_answer(reason: str) -> Reply:
    return {"status": 0, "body": "", "reason": reason}


def must_be_roots(connection: socket.socket) -> None:
    """Look who has accepted a connection of the loopback: while a server is down any user can
    listen at its port, who would be given its token.

    Who listens by now may be another one than has accepted it, and what waits to be accepted has no
    owner.

    Raises:
        OSError: it is another user's program than root's, or than one of who asks; or none.
    """
    server, client = map(_in_proc, (connection.getpeername(), connection.getsockname()))
    port, own, accepted = connection.getpeername()[1], (0, os.geteuid()), False
    for _ in looks(ACCEPTED_S, 0.02):
        texts = [Path("/proc/net", name) for name in ("tcp", "tcp6")]
        rows = [row for text in texts if text.exists() for row in text.read_text().splitlines()]
        for row in map(str.split, rows):
            listens = row[3] == LISTENS and row[1].endswith(f":{port:04X}")
            is_it = row[1].endswith(server) and row[2].endswith(client) and row[9] != "0"
            if (listens or is_it) and int(row[7]) not in own:
                raise OSError(f"port {port} belongs to another user, who gets no token")
            accepted |= is_it
        if accepted:
            return
    raise OSError("who has accepted the connection is not known, and gets no token")


def _in_proc(end: tuple[str, int]) -> str:
    """Return how an address of IPv4 and its port end in /proc/net/tcp and tcp6, as the machine
    keeps them in memory."""
    return f"{struct.unpack('=I', socket.inet_aton(end[0]))[0]:08X}:{end[1]:04X}"


def _bearer(path: Path | None) -> dict[str, str]:
    """The header with a token that never leaves the node."""
    try:
        token = path.read_text().strip() if path else ""
    except OSError:
        token = ""
    return {"Authorization": f"Bearer {token}"} if token else {}
