"""A relay in front of an sshd, which can be cut, held and closed as a network does it."""

import contextlib
import socket
import threading

BLOCK = 65536


class Relay:
    """Carries TCP connections of a port of its own to another one of the loopback.

    Args:
        to: the port it leads to.
        most: after so many bytes from there it accepts no more connections, and cuts all.

    Attributes:
        carried: how many bytes came from there.
    """

    def __init__(self, to: int, most: float = float("inf")) -> None:
        self._to, self._most = to, most
        self.carried = 0
        self._pairs: list[tuple[socket.socket, socket.socket]] = []
        self._passing = threading.Event()
        self._passing.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._accepting()

    def cut(self) -> None:
        """Close the connections that it carries."""
        while self._pairs:
            for one in self._pairs.pop():
                with contextlib.suppress(OSError):
                    one.shutdown(socket.SHUT_RDWR)
                one.close()

    def refuse(self) -> None:
        """Accept no more connections, and cut those that are there."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self.cut()

    def listen(self) -> None:
        """Accept connections again."""
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self._accepting()

    def hold(self) -> None:
        """Carry no more bytes; all connections stay."""
        self._passing.clear()

    def close(self) -> None:
        """End it."""
        self._passing.set()
        self.refuse()

    def _accepting(self) -> None:
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                here, _ = listener.accept()
                there = socket.create_connection(("127.0.0.1", self._to))
                self._pairs.append((here, there))
                for pair in ((here, there), (there, here)):
                    threading.Thread(target=self._carry, args=(*pair, here), daemon=True).start()

    def _carry(self, source: socket.socket, sink: socket.socket, here: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(BLOCK):
                self._passing.wait()
                self.carried += len(data) if source is not here else 0
                if self.carried > self._most:
                    self.refuse()
                    return
                sink.sendall(data)
        for one in (source, sink):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
