"""A server on a port of the loopback whose answers a test gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

Answer = tuple[int, Mapping[str, str], str | bytes]
"""Status, headers, body."""


@contextmanager
def answering(answer: Callable[[Any], Answer | None]) -> Iterator[int]:
    """Answer requests, and yield the port.

    Args:
        answer: is given the handler of a request, whose body is its `received`; None sends nothing.
    """

    class Handler(BaseHTTPRequestHandler):
        def reply(self) -> None:
            self.received = self.rfile.read(int(self.headers.get("Content-Length", 0))).decode()
            found = answer(self)
            if found is None:
                return
            status, headers, body = found
            data = body.encode() if isinstance(body, str) else body
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_POST = reply  # noqa: N815

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
