"""The HTTP side of an engine that is healthy, and says nothing else."""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread


class HealthServer:
    """A server on a port of the loopback.

    Attributes:
        status: of each answer.
        when_asked: is called for each request, before its answer.
    """

    def __init__(self, port: int, status: int = 200) -> None:
        self.port, self.status = port, status
        self.when_asked: Callable[[], object] = lambda: None
        server = self

        class Asked(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.when_asked()
                self.send_response(server.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", port), Asked)
        Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()

    def close(self) -> None:
        self._http.shutdown()
        self._http.server_close()
