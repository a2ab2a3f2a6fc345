"""A server as Ollama's documentation describes it."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


class Ollama(ThreadingHTTPServer):
    """The server, at a free port of this machine.

    Attributes:
        loaded: the models that it tells of.
        refusal: with which it does not unload; empty: it does.
    """

    def __init__(self, *loaded: dict[str, Any]) -> None:
        super().__init__(("127.0.0.1", 0), _Asked)
        self.loaded: Any = list(loaded)
        self.refusal = ""
        Thread(target=self.serve_forever, args=(0.02,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def close(self) -> None:
        """End it, once or again."""
        self.shutdown()
        self.server_close()


class _Asked(BaseHTTPRequestHandler):
    server: Ollama

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(200, {"models": self.server.loaded})

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = self.server
        if server.refusal:
            self._answer(500, {"error": server.refusal})
            return
        assert asked["keep_alive"] == 0
        server.loaded = [model for model in server.loaded if model["name"] != asked["model"]]
        self._answer(200, {"model": asked["model"], "done": True, "done_reason": "unload"})

    def _answer(self, status: int, document: Any) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
