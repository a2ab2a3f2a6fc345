"""HTTPS to a server whose certificate is known: exactly that one is accepted."""

from __future__ import annotations

import hashlib
import http.client
import socket
import ssl
from pathlib import Path

_BEGIN, _END = "-----BEGIN CERTIFICATE-----", "-----END CERTIFICATE-----"


def fingerprint(path: str) -> str:
    """SHA-256, in hex, of the first certificate of a PEM file.

    Raises:
        OSError: the file cannot be read, or holds none.
    """
    text = Path(path).read_text(encoding="ascii", errors="replace")
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
