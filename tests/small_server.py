"""A server on a port of the loopback whose answers a test gives, with their headers."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from web_server import Asked, Reply, WebServer

Answer = tuple[int, Mapping[str, str], str | bytes]
"""Status, headers, body."""


class _Answering(WebServer):
    def __init__(self, given: Callable[[Any], Answer | None]) -> None:
        self.given = given
        super().__init__()

    def reply(self, handler: Any, asked: Asked) -> Reply | None:
        handler.received = asked.body.decode()
        if (found := self.given(handler)) is None:
            return None
        status, headers, body = found
        return status, headers, body.encode() if isinstance(body, str) else body


@contextmanager
def answering(answer: Callable[[Any], Answer | None]) -> Iterator[int]:
    """Answer requests, and yield the port.

    Args:
        answer: is given the handler of a request, whose body is its `received`; None sends nothing.
    """
    with _Answering(answer) as server:
        yield server.server_port
