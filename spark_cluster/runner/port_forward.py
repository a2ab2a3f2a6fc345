"""Connections to a port of this machine's loopback, carried over SSH to a port that a node reaches.

As `ssh -L` does: a channel `direct-tcpip` for each connection (RFC 4254, section 7.2).
"""

from __future__ import annotations

import contextlib
import errno
import socket
import struct
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from spark_cluster.errors import UsageError

if TYPE_CHECKING:
    import paramiko

LOOPBACK = "127.0.0.1"

MOST = 128
"""Connections at a time; later ones wait in the kernel's queue."""

OPENS_WITHIN_S = 10.0
"""Seconds that the node has to connect to the port there."""

BLOCK = 64 * 1024

Address = tuple[str, int]
"""Host and port."""


def listen(port: int) -> socket.socket:
    """Return a socket that listens on a port of the loopback; 0 lets the kernel choose one.

    Raises:
        UsageError: the port is taken, or only root may use it.
    """
    try:
        return socket.create_server((LOOPBACK, port), backlog=MOST)
    except OSError as error:
        reason = {
            errno.EADDRINUSE: "another program listens there",
            errno.EACCES: "only root may listen there",
        }.get(error.errno or 0, (error.strerror or str(error)).lower())
        raise UsageError(
            f"port {port} of this machine cannot be used: {reason}",
            hint="give another one: --port PORT",
        ) from None


class PortForward:
    """Carries the connections that a listener accepts.

    Args:
        listener: of this machine; it stays open while there is no SSH connection, and what is
            accepted then is closed at once, so that a client can try again.
        on_refused: is given the reason when the node does not connect to the port there.
    """

    def __init__(self, listener: socket.socket, on_refused: Callable[[str], None]) -> None:
        self._listener = listener
        self._on_refused = on_refused
        self._free = threading.BoundedSemaphore(MOST)
        self._way: tuple[paramiko.Transport, Address] | None = None
        threading.Thread(target=self._accept, daemon=True).start()

    def use(self, transport: paramiko.Transport | None, address: Address = ("", 0)) -> None:
        """Carry new connections over this transport to this address there; None carries none."""
        self._way = None if transport is None else (transport, address)

    def close(self) -> None:
        """Listen no longer."""
        self._way = None
        with contextlib.suppress(OSError):  # wakes the thread that accepts
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _accept(self) -> None:
        while True:
            self._free.acquire()
            try:
                accepted, _ = self._listener.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._carry, args=(accepted,), daemon=True).start()

    def _carry(self, accepted: socket.socket) -> None:
        try:
            with accepted:
                channel = self._open()
                if channel is None:
                    _reset_on_close(accepted)
                else:
                    _both_ways(accepted, channel)
        finally:
            self._free.release()

    def _open(self) -> paramiko.Channel | None:
        """Return a channel to the port there; None when there is no way to it now."""
        import paramiko

        from spark_cluster.runner.ssh_limits import NoAnswer

        if self._way is None:
            return None
        transport, address = self._way
        try:
            return transport.open_channel(
                "direct-tcpip", address, (LOOPBACK, 0), timeout=OPENS_WITHIN_S
            )
        except paramiko.ChannelException as error:
            self._on_refused(_why_refused(error.code, address))
        except NoAnswer:
            host, port = address
            self._on_refused(f"{host}:{port} there did not answer within {OPENS_WITHIN_S:g} s")
        except (paramiko.SSHException, OSError, EOFError):
            pass  # the SSH connection has ended, which who waits for its end reports
        return None


def _why_refused(code: int, address: Address) -> str:
    """Return why sshd opened no channel; the codes are those of RFC 4254, section 5.1."""
    if code == 1:
        return "sshd there forbids forwarding (AllowTcpForwarding or PermitOpen in sshd_config)"
    return f"nothing listens at {address[0]}:{address[1]} there"


def _both_ways(accepted: socket.socket, channel: paramiko.Channel) -> None:
    """Copy in both directions until both have ended, or the SSH connection has."""
    up = threading.Thread(target=_copy_up, args=(accepted, channel), daemon=True)
    up.start()
    with contextlib.suppress(OSError, EOFError):
        while data := channel.recv(BLOCK):
            accepted.sendall(data)
    whole = channel.eof_received
    if not whole:  # a cut answer must not look like a whole one
        _reset_on_close(accepted)
    with contextlib.suppress(OSError):
        accepted.shutdown(socket.SHUT_WR if whole else socket.SHUT_RD)  # the latter sends no FIN
    up.join()
    channel.close()


def _copy_up(accepted: socket.socket, channel: paramiko.Channel) -> None:
    with contextlib.suppress(OSError, EOFError):
        while data := accepted.recv(BLOCK):
            channel.sendall(data)
    with contextlib.suppress(OSError, EOFError):
        channel.shutdown_write()


def _reset_on_close(accepted: socket.socket) -> None:
    """Have the end of a connection seen as an error by its client (RST instead of FIN)."""
    with contextlib.suppress(OSError):
        accepted.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
