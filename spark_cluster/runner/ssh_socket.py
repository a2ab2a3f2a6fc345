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
from spark_cluster.runner.ssh_config import Hop

DEAD_PEER_MS = 15_000
"""TCP_USER_TIMEOUT, milliseconds: sent data unanswered for so long ends the connection. paramiko's
keepalives do not find a dead peer."""

PROXY_GRACE_S = 2.0
"""Seconds that a ProxyCommand has to end in when its connection is closed."""


def socket_to(hop: Hop) -> socket.socket:
    """A socket to the first host of a route: TCP, or the user's ProxyCommand.

    Raises:
        Unreachable: no such name, refused, no answer.
    """
    return _ProxySocket(hop.proxy_command) if hop.proxy_command else _tcp(hop)


def _tcp(hop: Hop) -> socket.socket:
    """A TCP connection that does not wait to send, and notices a dead peer."""
    host: Any = hop.host.encode() if hop.host.isascii() else hop.host  # text costs a codec, 10 ms
    limit_s, hint = hop.target.connect_timeout_s, "check that it is on and on this network, and "
    hint += "its `address` in the inventory"
    try:
        sock = socket.create_connection((host, hop.port), timeout=limit_s)
    except socket.gaierror:
        what = f"no address is known for {hop.host!r}"
        hint = "check `address` in the inventory, or the host's entry in ~/.ssh/config"
    except ConnectionRefusedError:
        what = f"{hop.place} refused the connection"
        hint = "the machine is up, but no sshd listens there: check the port, and sshd on it"
    except TimeoutError:
        what = f"{hop.place} did not answer within {limit_s:g} s"
    except OSError as error:
        what = f"{hop.place}: {(error.strerror or str(error)).lower()}"
    else:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, DEAD_PEER_MS)
        return sock
    raise Unreachable(what, where=hop.target.name, hint=hint)


class _ProxySocket(socket.socket):
    """A socket to a ProxyCommand, which is ended, as ssh ends it, when the socket is closed.

    paramiko's own ProxyCommand waits up to 0.1 s for each packet, spins when the program has
    ended, and runs no shell, as ssh does.
    """

    def __init__(self, command: str) -> None:
        ours, theirs = socket.socketpair()
        super().__init__(fileno=ours.detach())
        with theirs:
            argv, end = ["/bin/sh", "-c", f"exec {command}"], theirs.fileno()
            self._process = subprocess.Popen(argv, stdin=end, stdout=end, start_new_session=True)
        threading.Thread(target=self._process.wait, daemon=True).start()

    def close(self) -> None:
        super().close()
        for ends, wait_s in ((signal.SIGHUP, PROXY_GRACE_S), (signal.SIGKILL, 0.0)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if self._process.poll() is None:
                    os.killpg(self._process.pid, ends)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(wait_s)
                return
