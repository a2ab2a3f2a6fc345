"""What sender and receiver of a model say to each other: short JSON messages, and bytes.

Each side proves that it knows the token of this copy, which neither sends; with TLS the receiver
also knows the sender's certificate. Without TLS the content is still what its hashes say, but
whoever listens on the way can read it.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import socket
import ssl
import struct
from typing import Any

LARGEST_MESSAGE = 64 * 1024
"""Bytes."""
HANDSHAKE_S = 10.0
STALLED_S = 10.0
"""Seconds without a byte after which a stream is given up."""
NONCE = 32


class WireError(Exception):
    """The other side is not who it should be, or does not keep to the protocol."""


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Send a message."""
    data = json.dumps(message).encode()
    connection.sendall(len(data).to_bytes(4, "big") + data)


def receive(connection: socket.socket) -> dict[str, Any]:
    """Receive a message.

    Raises:
        WireError: it is none.
        EOFError: the other side has closed the connection.
        OSError: no byte came in time.
    """
    length = int.from_bytes(exactly(connection, 4), "big")
    if length > LARGEST_MESSAGE:
        raise WireError("a message is too long")
    try:
        found = json.loads(exactly(connection, length))
    except (ValueError, RecursionError) as error:
        raise WireError("a message is no JSON") from error
    if not isinstance(found, dict):
        raise WireError("a message is no object")
    return found


def exactly(connection: socket.socket, length: int) -> bytes:
    """Receive so many bytes.

    Raises:
        EOFError: fewer came.
    """
    data = bytearray(length)
    fill(connection, memoryview(data))
    return bytes(data)


def fill(connection: socket.socket, view: memoryview) -> None:
    """Receive until the view is full.

    Raises:
        EOFError: fewer bytes came.
    """
    # One call of the kernel for all of it: threads that come back to Python for every packet wait
    # for each other. TLS gives 16 KiB at most.
    wait = 0 if isinstance(connection, ssl.SSLSocket) else socket.MSG_WAITALL
    while view:
        taken = connection.recv_into(view, 0, wait)
        if not taken:
            raise EOFError("the connection was closed")
        view = view[taken:]


def _proof(token: str, side: str, first: str, second: str) -> str:
    text = f"spark-cluster copy {side} {first} {second}"
    return hmac.new(token.encode(), _bytes(text), hashlib.sha256).hexdigest()


def _bytes(text: object) -> bytes:
    """Return what a stranger has sent as text; JSON also has what is none in UTF-8."""
    return str(text).encode(errors="replace")


def greet_as_sender(connection: socket.socket, token: str) -> None:
    """Prove the token, and have the receiver prove it first.

    Raises:
        WireError: it does not know the token.
    """
    ours = secrets.token_hex(NONCE)
    send(connection, {"nonce": ours})
    message = receive(connection)
    theirs = str(message.get("nonce", ""))
    expected = _proof(token, "receiver", ours, theirs)
    if not hmac.compare_digest(_bytes(message.get("proof", "")), expected.encode()):
        raise WireError("the receiver does not know this copy's token")
    send(connection, {"proof": _proof(token, "sender", theirs, ours)})


def greet_as_receiver(connection: socket.socket, token: str) -> None:
    """Prove the token, and have the sender prove it, too.

    Raises:
        WireError: it does not know the token.
    """
    ours = secrets.token_hex(NONCE)
    theirs = str(receive(connection).get("nonce", ""))
    send(connection, {"nonce": ours, "proof": _proof(token, "receiver", theirs, ours)})
    proof = receive(connection).get("proof", "")
    if not hmac.compare_digest(_bytes(proof), _proof(token, "sender", ours, theirs).encode()):
        raise WireError("the sender does not know this copy's token")


def sender_tls(certificate: str, key: str) -> ssl.SSLContext:
    """TLS 1.3 of a sender.

    Args:
        certificate, key: paths of PEM files.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate, key)
    return context


def receiver_tls(certificate: str) -> ssl.SSLContext:
    """TLS 1.3 of a receiver, which takes this one certificate and no other.

    Args:
        certificate: PEM text.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # the certificate itself is known, not an authority
    context.load_verify_locations(cadata=certificate)
    return context


def fast(connection: socket.socket) -> None:
    """Send small messages at once; find out about a peer whose power is gone."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    patience(connection, STALLED_S)


def patience(connection: socket.socket, seconds: float) -> None:
    """Wait so long for the next bytes, or for room to send.

    The kernel keeps the limit (socket(7)), so that a call can wait for many bytes at once; a
    socket with a limit of Python's own returns after each packet.
    """
    connection.settimeout(None)
    limit = struct.pack("ll", int(seconds), int(seconds % 1 * 1e6))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, limit)
