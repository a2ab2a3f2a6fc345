"""A server as Ollama's documentation describes it."""

from typing import Any

from web_server import Answer, Asked, WebServer


class Ollama(WebServer):
    """The server, at a free port of this machine.

    Attributes:
        loaded: the models that it tells of.
        refusal: with which it does not unload; empty: it does.
    """

    def __init__(self, *loaded: dict[str, Any]) -> None:
        self.loaded: Any = list(loaded)
        self.refusal = ""
        super().__init__()

    def answer(self, asked: Asked) -> Answer:
        if asked.method == "GET":
            return 200, {"models": self.loaded}
        if self.refusal:
            return 500, {"error": self.refusal}
        assert asked.document["keep_alive"] == 0
        name = asked.document["model"]
        self.loaded = [model for model in self.loaded if model["name"] != name]
        return 200, {"model": name, "done": True, "done_reason": "unload"}
