"""A port of this machine that leads to one on a node's loopback, through the SSH connection.

fabric's own forwarding ends for good when the far port is refused once, which is what a service
that is just starting does.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import threading
from typing import TYPE_CHECKING

from spark_cluster.errors import SparkClusterError

if TYPE_CHECKING:
    import paramiko

    from spark_cluster.engine.transport import SshConnection


class Tunnel:
    """Listens on a free port of the loopback while the context is open.

    Attributes:
        port: the local port.
    """

    def __init__(self, connection: SshConnection, remote_port: int) -> None:
        self._connection = connection
        self._remote = ("127.0.0.1", remote_port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self._accepting = threading.Thread(target=self._accept, daemon=True)

    def __enter__(self) -> Tunnel:
        self._accepting.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._accepting.join(timeout=2)

    def _accept(self) -> None:
        while True:
            try:
                client, address = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._carry, args=(client, address), daemon=True).start()

    def _carry(self, client: socket.socket, address: tuple[str, int]) -> None:
        import paramiko

        with client:
            try:
                transport = self._connection.open().transport
                channel = transport.open_channel("direct-tcpip", self._remote, address, timeout=10)
            except (paramiko.SSHException, OSError, EOFError, SparkClusterError):
                return  # refused there: the client sees its connection closed
            with channel, contextlib.suppress(OSError):
                _pump(client, channel)


def _pump(client: socket.socket, channel: paramiko.Channel) -> None:
    """Carry bytes both ways until either side ends."""
    with selectors.DefaultSelector() as selector:
        selector.register(client, selectors.EVENT_READ, (client, channel))
        selector.register(channel, selectors.EVENT_READ, (channel, client))
        while True:
            for key, _ in selector.select():
                source, target = key.data
                data = source.recv(65536)
                if not data:
                    return
                target.sendall(data)
