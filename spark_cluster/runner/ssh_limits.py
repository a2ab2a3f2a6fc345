"""Limits on what paramiko waits for without one.

A node out of memory or processes, or with a stopped sshd, still acknowledges in its kernel: no
time-out of TCP ends the wait for what its sshd does not say.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import paramiko

NEXT_LINE_S = 2.0
"""Seconds for which paramiko waits for the line after one that is no banner."""


class NoAnswer(Exception):
    """A server that is silent in the middle of a step.

    It is none of paramiko's errors, which its client takes for a refused key, to try the next one.

    Attributes:
        step: what the server did not do, as in "sshd did not ...".
        of_gateway: it is a jump host, which should have connected to the next one.
    """

    def __init__(self, step: str, *, of_gateway: bool = False) -> None:
        super().__init__(step)
        self.step = step
        self.of_gateway = of_gateway


class LimitedTransport(paramiko.Transport):
    """A transport whose time-outs are told apart from refusals, and that has one for each step."""

    def start_client(
        self, event: threading.Event | None = None, timeout: float | None = None
    ) -> None:
        """Exchange banners and keys, each within `banner_timeout` seconds.

        paramiko's own limit of the key exchange ends with the first message of it.

        Raises:
            NoAnswer: the server was silent for so long.
        """
        self.handshake_timeout = self.banner_timeout
        try:
            super().start_client(event, timeout or 2 * self.banner_timeout + NEXT_LINE_S)
        except EOFError:
            if self.packetizer.handshake_timed_out():
                raise NoAnswer("finish the key exchange") from None
            raise
        finally:
            self.packetizer.complete_handshake()  # its timer would hold up the program's end
        if event is None and not self.initial_kex_done:
            raise NoAnswer("finish the key exchange" if self.remote_version else "send a banner")

    def auth_publickey(self, *args: Any, **options: Any) -> list[str]:
        with _not_silent("Authentication timeout.", "answer the login"):
            return super().auth_publickey(*args, **options)

    def auth_password(self, *args: Any, **options: Any) -> list[str]:
        with _not_silent("Authentication timeout.", "answer the login"):
            return super().auth_password(*args, **options)

    def open_channel(self, kind: str, *args: Any, **options: Any) -> paramiko.Channel:
        gateway = kind == "direct-tcpip"
        step = "connect to the next host" if gateway else "open a session"
        with _not_silent("Timeout opening channel.", step, of_gateway=gateway):
            return super().open_channel(kind, *args, **options)


@contextlib.contextmanager
def _not_silent(text: str, step: str, *, of_gateway: bool = False) -> Iterator[None]:
    """Raise NoAnswer for paramiko's error with this text."""
    try:
        yield
    except paramiko.SSHException as error:
        if str(error) == text:
            raise NoAnswer(step, of_gateway=of_gateway) from None
        raise


@contextlib.contextmanager
def limited(transport: paramiko.Transport, limit_s: float, step: str) -> Iterator[None]:
    """Close the connection when what is done with it takes longer than `limit_s` seconds.

    Not only the channel: to close one takes a message, which may not get out either.

    Raises:
        NoAnswer: it was closed.
    """
    expired = threading.Event()

    def end() -> None:
        expired.set()
        transport.close()

    timer = threading.Timer(limit_s, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    except (paramiko.SSHException, OSError, EOFError):
        if not expired.is_set():
            raise
    finally:
        timer.cancel()
    if expired.is_set():
        raise NoAnswer(step)
