"""A port of this machine's loopback that leads to a port which a node can reach.

What comes to it is carried by the connection that is open to the node: its host keys were verified
on every hop, and what does not answer for too long is taken to be cut.
"""

from __future__ import annotations

import contextlib
import re
import socket
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Literal

import paramiko

from spark_cluster.config.ports import LOOPBACK
from spark_cluster.errors import Unreachable, UsageError
from spark_cluster.runner.channel import SLICE
from spark_cluster.runner.ssh import Connection, limited

if TYPE_CHECKING:
    Event = tuple[Literal["cut", "refused"], str]
    News = Iterator[Event]

KEEPALIVE_S, UNANSWERED = 10, 2
"""Seconds between two questions to sshd whether it is still there, and the number of them without
an answer after which the connection is cut."""

FORBIDDEN, NOT_CONNECTED = 1, 2
"""Reasons for which sshd opens no channel (source: rfc4254, section 5.1)."""


def free_port() -> int:
    """Return a port of the loopback that nothing listens on."""
    with socket.create_server((LOOPBACK, 0)) as listener:
        return int(listener.getsockname()[1])


@contextlib.contextmanager
def carried(login: Connection, port: int, host: str, to_port: int) -> Iterator[News]:
    """Lead a port of the loopback to one that a node can reach, during the block.

    Args:
        login: the connection to the node; it is the caller's to end.
        port: of this machine's loopback; it listens when the block begins.
        host, to_port: where it leads, as the node names it.

    Yields:
        The news, as they come: `refused` when the node does not connect to the port there, and at
        last `cut`; each with the reason.

    Raises:
        Unreachable: the host is no address or name.
        UsageError: the port cannot be listened on.
    """
    if not re.fullmatch(r"[A-Za-z0-9_.:%-]+", host):
        name = login.target.name
        raise Unreachable(f"{host!r} is not an address or a host name", where=name)
    try:
        listener = socket.create_server((LOOPBACK, port))
    except OSError:
        raise UsageError(
            f"port {port} of this machine cannot be used: another program listens there",
            hint="give another one: --port PORT",
        ) from None
    told: SimpleQueue[Event] = SimpleQueue()
    tunnel = _Tunnel(login.transport, (host, to_port), told)
    with listener:
        for job in (lambda: tunnel.accept(listener), tunnel.watch):
            threading.Thread(target=job, daemon=True).start()
        try:
            yield _news(told)
        finally:
            listener.shutdown(socket.SHUT_RDWR)  # which ends the wait for the next one


def _news(told: SimpleQueue[Event]) -> News:
    kind = ""
    while kind != "cut":
        kind, _ = event = told.get()
        yield event


class _Tunnel:
    """Carries what connects to a port over a transport."""

    def __init__(self, transport: Any, to: tuple[str, int], told: SimpleQueue[Event]) -> None:
        self._transport = transport
        self._to = to
        self._told = told

    def accept(self, listener: socket.socket) -> None:
        """Take connections until the listener is closed."""
        with contextlib.suppress(OSError):
            while True:
                made = listener.accept()
                threading.Thread(target=self._carry, args=made, daemon=True).start()

    def watch(self) -> None:
        """Ask sshd for signs of life, and tell when the connection has ended."""
        why, silent_s = "the connection was cut", KEEPALIVE_S * UNANSWERED
        silent = f"sshd did not answer within {silent_s} s"
        with contextlib.suppress(paramiko.SSHException, OSError, EOFError):
            while self._transport.is_alive():
                self._transport.join(KEEPALIVE_S)
                try:
                    with limited(self._transport, silent_s - KEEPALIVE_S, Unreachable(silent)):
                        self._transport.global_request("keepalive@openssh.com", wait=True)
                except Unreachable:
                    why = silent
                    break
        self._told.put(("cut", why))

    def _carry(self, client: socket.socket, peer: tuple[str, int]) -> None:
        """Carry one connection, both ways, until both have ended."""
        with client, contextlib.suppress(paramiko.SSHException, OSError, EOFError):
            try:
                channel = self._transport.open_channel("direct-tcpip", self._to, peer)
            except paramiko.ChannelException as error:
                self._told.put(("refused", self._refusal(error)))
                return
            with contextlib.closing(channel):
                answers = threading.Thread(target=_pass_on, args=(channel, client), daemon=True)
                answers.start()
                _pass_on(client, channel)
                answers.join()

    def _refusal(self, error: paramiko.ChannelException) -> str:
        where = "{}:{}".format(*self._to)
        if error.code == FORBIDDEN:
            setting = "AllowTcpForwarding or PermitOpen in sshd_config"
            return f"sshd there forbids forwarding ({setting})"
        if error.code == NOT_CONNECTED:
            return f"nothing listens at {where} there"
        return f"{where} there: {error.text.lower()}"


def _pass_on(source: Any, sink: Any) -> None:
    """Pass on what comes from a socket or channel until it ends; the other way may go on."""
    with contextlib.suppress(OSError, EOFError):
        while data := source.recv(SLICE):
            sink.sendall(data)
    with contextlib.suppress(OSError, EOFError):
        sink.shutdown(socket.SHUT_WR)
