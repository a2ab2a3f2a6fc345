"""The HTTP side of an engine that is healthy, and says nothing else."""

from collections.abc import Callable

from web_server import Answer, Asked, WebServer


class HealthServer(WebServer):
    """A server on a port of the loopback.

    Attributes:
        status: of each answer.
        when_asked: is called for each request, before its answer.
    """

    def __init__(self, port: int = 0, status: int = 200) -> None:
        self.status = status
        self.when_asked: Callable[[], object] = lambda: None
        super().__init__(port=port)

    def answer(self, asked: Asked) -> Answer:
        self.when_asked()
        return self.status, ""
