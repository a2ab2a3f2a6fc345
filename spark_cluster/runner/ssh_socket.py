"""The socket to the first host of a route: TCP, or the user's ProxyCommand."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
from typing import Any

from spark_cluster.errors import Unreachable
from spark_cluster.runner.ssh_route import Hop, Target

DEAD_PEER_MS = 15_000
"""TCP_USER_TIMEOUT, milliseconds: sent data unanswered for so long ends the connection."""

PROXY_GRACE_S = 2.0
"""Seconds that a ProxyCommand has to end in when its connection is closed."""


def socket_to(hop: Hop, target: Target) -> socket.socket:
    """A socket to the first host of a route: TCP, or the user's ProxyCommand.

    Raises:
        Unreachable: no such name, refused, no answer.
    """
    if hop.settings.proxy_command:
        return _proxy(hop.settings.proxy_command)
    return tcp(hop.settings.host, hop.settings.port, target)


def _proxy(command: str) -> socket.socket:
    """The other end of a program; it ends when the socket is closed.

    paramiko's own ProxyCommand waits up to 0.1 s for each packet, spins when the program has
    ended, and runs no shell, as ssh does.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        end = theirs.fileno()
        process = subprocess.Popen(
            ["/bin/sh", "-c", f"exec {command}"], stdin=end, stdout=end, start_new_session=True
        )
    return _ProxySocket(ours, process)


class _ProxySocket(socket.socket):
    """A socket to a program that is ended, as ssh ends it, when the socket is closed."""

    def __init__(self, ours: socket.socket, process: subprocess.Popen[bytes]) -> None:
        super().__init__(fileno=ours.detach())
        self._process = process
        threading.Thread(target=process.wait, daemon=True).start()

    def close(self) -> None:
        super().close()
        for ends, wait_s in ((signal.SIGHUP, PROXY_GRACE_S), (signal.SIGKILL, 0.0)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if self._process.poll() is None:
                    os.killpg(self._process.pid, ends)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_s)
                return


def tcp(host: str, port: int, target: Target) -> socket.socket:
    """A TCP connection that does not wait to send, and notices a dead peer.

    Raises:
        Unreachable: no such name, refused, no answer.
    """
    where = f"{host}:{port}"
    try:
        sock = socket.create_connection(_address(host, port), timeout=target.connect_timeout_s)
    except socket.gaierror:
        raise Unreachable(
            f"no address is known for {host!r}",
            where=target.name,
            hint="check `address` in the inventory, or the host's entry in ~/.ssh/config",
        ) from None
    except ConnectionRefusedError:
        raise Unreachable(
            f"{where} refused the connection",
            where=target.name,
            hint="the machine is up, but no sshd listens there: check the port, and sshd on it",
        ) from None
    except TimeoutError:
        raise Unreachable(
            f"{where} did not answer within {target.connect_timeout_s:g} s",
            where=target.name,
            hint="check that it is on and on this network, and its `address` in the inventory",
        ) from None
    except OSError as error:
        raise Unreachable(
            f"{where}: {(error.strerror or str(error)).lower()}",
            where=target.name,
            hint="check that it is on and on this network, and its `address` in the inventory",
        ) from None
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_MS)
    return sock


def _address(host: str, port: int) -> Any:
    """Return an address for `socket`, which imports a codec of 10 ms for a host that is text."""
    return (host.encode("ascii") if host.isascii() else host, port)
