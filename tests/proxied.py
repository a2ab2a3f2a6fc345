"""A real HAProxy with the role's configuration, in front of a small server that tells all."""

import base64
import contextlib
import hashlib
import os
import re
import shutil
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from role_samples import an_endpoint, yielded
from waiting import HANG_S, until

from spark_cluster.engine import proxy
from spark_cluster.node.host import Host
from spark_cluster.resources import File, Line, SelfSignedCertificate

HAPROXY = shutil.which("haproxy", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
needs_haproxy = pytest.mark.skipif(HAPROXY is None, reason="no HAProxy here; the lab has one")
LOG = "requests.log"
"""What the proxy prints, next to its files."""
LATE_S = 2.0
KEY = "sk-test-5be1cf0277a04d"
AUTH = f"Authorization: Bearer {KEY}\r\n"
"""A key of an endpoint, and the header with it."""


class Engine:
    """Stands for vLLM: tells what reached it; each path does one thing.

    `/stream` sends a second piece only when the test says that it has the first one; `/late` says
    nothing for `LATE_S`, then answers, and says nothing again in the middle; `/slow` waits for its
    connection to be closed; an `Upgrade` is taken, whatever it asks for.

    Attributes:
        healthy: whether `/health` is fine.
        dies: it closes the connection once it has read a request, `/health` excepted.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        self.first_piece_seen = threading.Event()
        self.gone = threading.Event()
        self.healthy = True
        self.dies = False
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):  # closed already
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    @property
    def lines(self) -> list[str]:
        """The request lines that reached it."""
        return [line for line, _ in self.requests]

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as reader:
            line = reader.readline().decode().strip()
            head = "".join(iter(lambda: reader.readline().decode().strip() + "\n", "\n"))
            if not line:
                return
            self.requests.append((line, head))
            path = line.split()[1]
            size = int((re.search(r"(?im)^content-length: (\d+)", head) or ["", "0"])[1])
            if path == "/health" and not self.healthy:
                connection.sendall(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n")
                return
            if self.dies and path != "/health":
                return
            upgrade = re.search(r"(?im)^upgrade: (\S+)", head)
            if upgrade:
                connection.sendall(
                    f"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\n"
                    f"Upgrade: {upgrade[1]}\r\n{_accepted(head)}\r\n".encode()
                )
                with contextlib.suppress(OSError):
                    reader.read(1)
            elif path == "/stream":
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
                    b"Transfer-Encoding: chunked\r\n\r\n7\r\ndata: 1\r\n"
                )
                assert self.first_piece_seen.wait(HANG_S)
                connection.sendall(b"7\r\ndata: 2\r\n0\r\n\r\n")
            elif path == "/late":
                reader.read(size)
                time.sleep(LATE_S)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nlate")
                time.sleep(LATE_S)
                connection.sendall(b"late")
            elif path == "/slow":
                connection.settimeout(HANG_S)
                with contextlib.suppress(OSError):
                    reader.read(1)  # nothing comes but the end
                self.gone.set()
            else:
                body = f"{path} {len(reader.read(size))}".encode()
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
                )


def request(method: str, target: str, more: str = "", body: str | bytes = b"") -> bytes:
    """Return a request that is the last of its connection; `more` are lines of its head."""
    data = body.encode() if isinstance(body, str) else body
    sized = f"Content-Length: {len(data)}\r\n" if data else ""
    head = f"{method} {target} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{sized}{more}\r\n"
    return head.encode() + data


def status(answer: str) -> int:
    """Return the status of an answer."""
    return int(answer.split(" ", 2)[1])


def _accepted(head: str) -> str:
    """The answer to a WebSocket's key (RFC 6455, 4.2.2), which proxies look at."""
    key = re.search(r"(?im)^sec-websocket-key: (\S+)", head)
    if key is None:
        return ""
    text = key[1] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
    digest = hashlib.sha1(text.encode(), usedforsecurity=False).digest()
    return f"Sec-WebSocket-Accept: {base64.b64encode(digest).decode()}\r\n"


@contextlib.contextmanager
def proxied(
    folder: Path,
    node: Any,
    engine_port: int,
    *,
    instead: Mapping[str, str] | None = None,
    runtime: Path | None = None,
    host: str = "127.0.0.1",
    connections_per_address: int = 512,
    **fields: Any,
) -> Iterator[int]:
    """The port of a running proxy; its files are in `folder`, which stands for the unit's
    credentials.

    Args:
        fields: of its endpoint.
        runtime: a folder that stands for the unit's own in /run; the path of a socket is short.
        instead: lines of the configuration, and what they shall be: shorter times, a lower limit.
    """
    assert HAPROXY is not None
    port = free_port()
    own = tempfile.TemporaryDirectory(dir="/tmp")
    endpoint = an_endpoint(host, port, engine_port=engine_port, **fields)
    most = {"connections_per_address": connections_per_address}
    for resource in yielded("endpoint", node, endpoint=endpoint, **most):
        if isinstance(resource, Line):
            (folder / Path(resource.path).name).write_text(f"{resource.line}\n")
        elif isinstance(resource, File) and resource.state == "present":
            (folder / Path(resource.path).name).write_text(str(resource.content))
        elif isinstance(resource, SelfSignedCertificate):
            (folder / Path(resource.path).name).write_bytes(resource._make(Host()))
    environment = {
        **os.environ,
        "CREDENTIALS_DIRECTORY": str(folder),
        "RUNTIME_DIRECTORY": str(runtime or own.name),
    }
    config = str(folder / Path(proxy.CONFIG).name)
    for line, other in (instead or {}).items():
        text = Path(config).read_text()
        assert text.count(f"    {line}\n") == 1, line
        Path(config).write_text(text.replace(f"    {line}\n", f"    {other}\n"))
    checked = subprocess.run(
        [HAPROXY, "-c", "-f", config], env=environment, capture_output=True, text=True, check=False
    )
    assert checked.returncode == 0, checked.stderr
    assert "WARNING" not in checked.stderr, checked.stderr
    with (folder / LOG).open("wb") as log:
        process = subprocess.Popen([HAPROXY, "-db", "-f", config], env=environment, stdout=log)

    def answers() -> bool:
        assert process.poll() is None
        with contextlib.suppress(OSError):  # from a network whose connections no test counts
            socket.create_connection(("127.0.0.1", port), HANG_S, ("127.9.9.9", 0)).close()
            return True
        return False

    try:
        until(answers, what="the proxy")
        yield port
    finally:
        process.kill()
        process.wait()
        own.cleanup()


def converse(port: int, text: str | bytes, *, end: bytes = b"") -> str:
    """Send bytes as they are; all that comes back, or as far as `end`."""
    with socket.create_connection(("127.0.0.1", port), timeout=HANG_S) as connection:
        connection.sendall(text if isinstance(text, bytes) else text.encode())
        got = b""
        while not end or end not in got:
            piece = connection.recv(65536)
            if not piece:
                break
            got += piece
        return got.decode(errors="replace")
