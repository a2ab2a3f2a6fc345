"""An HTTP server of this machine whose answers are a function of the test."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


@dataclass(frozen=True)
class Asked:
    """A request."""

    method: str
    path: str
    headers: Message
    body: bytes

    @property
    def document(self) -> Any:
        """Its body as JSON."""
        return json.loads(self.body)


Answer = tuple[int, Any]
"""Status and body: a text, bytes, or what is sent as JSON."""

Reply = tuple[int, Mapping[str, str], bytes]
"""Status, headers and body."""


class WebServer(ThreadingHTTPServer):
    """A server on the loopback, which serves from the beginning until `close`.

    Args:
        answer: what each request gets; a class may have a method `answer` instead.
        port: 0 for a free one.

    Attributes:
        asked: the requests, in their order.
    """

    daemon_threads = True

    def __init__(self, answer: Callable[[Asked], Answer] | None = None, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        if answer is not None:
            self.answer = answer  # type: ignore[method-assign]
        self.asked: list[Asked] = []
        Thread(target=self.serve_forever, args=(0.01,), daemon=True).start()

    def answer(self, asked: Asked) -> Answer:
        """Return the answer to a request."""
        raise NotImplementedError

    def reply(self, _handler: Handler, asked: Asked) -> Reply | None:
        """Return what is sent for a request; None sends nothing."""
        status, said = self.answer(asked)
        text = said if isinstance(said, str | bytes) else json.dumps(said)
        return status, {}, text if isinstance(text, bytes) else text.encode()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def close(self) -> None:
        """End it."""
        self.shutdown()
        self.server_close()

    def __exit__(self, *_: object) -> None:
        self.close()


class Handler(BaseHTTPRequestHandler):
    """Answers one request."""

    server: WebServer

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        asked = Asked(self.command, self.path, self.headers, body)
        self.server.asked.append(asked)
        reply = self.server.reply(self, asked)
        if reply is None:
            return
        status, headers, content = reply
        with contextlib.suppress(ConnectionError):  # the client no longer waits
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(content)

    do_POST = do_GET  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass
