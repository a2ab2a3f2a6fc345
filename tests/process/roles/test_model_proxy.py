"""Requests to a real HAProxy in front of servers of several models: each reaches its model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cases import each_case
from free_ports import free_port
from proxied import AUTH, KEY, Engine, converse, needs_haproxy, proxied, request, status
from role_samples import a_spark
from waiting import until

from spark_cluster.engine import proxy
from spark_cluster.engine.proxy import ModelServer

pytestmark = needs_haproxy


@dataclass(frozen=True)
class Served:
    """A proxy on a port, and the servers behind it by name of the model."""

    port: int
    engines: dict[str, Engine]

    def ask(self, method: str, target: str, body: bytes | str = b"", more: str = "") -> str:
        """Return the answer to a request with the key."""
        return converse(self.port, request(method, target, AUTH + more, body))

    def reached(self, method: str, target: str, body: bytes | str = b"", more: str = "") -> str:
        """Return the model whose server a request reached."""
        before = {name: len(_asked(engine)) for name, engine in self.engines.items()}
        answer = self.ask(method, target, body, more)
        assert status(answer) == 200, answer
        found = [n for n, engine in self.engines.items() if len(_asked(engine)) > before[n]]
        assert len(found) == 1, found
        return found[0]


def _asked(engine: Engine) -> list[str]:
    return [line for line in engine.lines if not line.startswith("GET /health ")]


def content(answer: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer.partition("\r\n\r\n")[2])
    return found


ODD = "-i $HOME #1 %[src] ${PATH}"
"""A name that a configuration could take for something else."""

MODELS = {
    "paris": (("paris", "gpt-4o"), "chat"),
    "org/words": (("org/words", "text-embedding-3-small"), "embedding"),
    "whisper": (("whisper", ODD), "transcription"),
}


@contextmanager
def serving(folder: Path) -> Iterator[Served]:
    engines = {name: Engine() for name in MODELS}
    servers = tuple(
        ModelServer(
            *("spark1", "127.0.0.1", engines[name].port, f"spark-vllm-{n}"),
            names=names,
            kind=kind,  # type: ignore[arg-type]
        )
        for n, (name, (names, kind)) in enumerate(MODELS.items())
    )
    with proxied(folder, a_spark(), free_port(), api_key=KEY, models=servers) as port:
        yield Served(port, engines)
    for one in engines.values():
        one.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("models")) as found:
        yield found


CHAT = "/v1/chat/completions"


@each_case(__file__, "model_requests.json")
def test_a_request_reaches_the_model_that_it_names(served: Served, case: dict[str, Any]) -> None:
    asked = (case.get("method", "POST"), case.get("target", CHAT), case.get("body", ""))
    if "reaches" in case:
        assert served.reached(*asked, case.get("headers", "")) == case["reaches"]
        return
    answer = served.ask(*asked)
    assert status(answer) == case["status"], answer
    error = content(answer)["error"]
    assert (error["code"], error["type"]) == (case["code"], "invalid_request_error")
    assert case.get("says", "") in error["message"]


def test_the_name_may_stand_behind_a_long_prompt(served: Served) -> None:
    long = json.dumps({"messages": "x" * (proxy.BUFFER // 2), "model": "org/words"})
    assert served.reached("POST", CHAT, long) == "org/words"
    too_long = json.dumps({"messages": "x" * (proxy.BUFFER + 10), "model": "org/words"})
    assert status(served.ask("POST", CHAT, too_long)) == 400
    assert served.reached("POST", f"{CHAT}?model=org%2Fwords", too_long) == "org/words"


def test_a_body_in_chunks_is_read_whole(served: Served) -> None:
    parts = (b'{"stream": true, "mod', b'el": "org/words"}')
    body = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in parts) + b"0\r\n\r\n"
    head = request("POST", CHAT, f"{AUTH}Transfer-Encoding: chunked\r\n")
    before = len(_asked(served.engines["org/words"]))
    converse(served.port, head + body)
    assert len(_asked(served.engines["org/words"])) == before + 1


def test_all_models_are_listed(served: Served) -> None:
    found = content(served.ask("GET", "/v1/models"))
    assert [one["id"] for one in found["data"]] == [
        *("paris", "gpt-4o", "org/words", "text-embedding-3-small", "whisper", ODD)
    ]


def test_nothing_is_told_without_the_key(served: Served) -> None:
    for method, target in (("GET", "/v1/models"), ("POST", CHAT), ("GET", "/version")):
        assert status(converse(served.port, request(method, target))) == 401


def test_the_endpoint_is_healthy_when_every_model_is(tmp_path: Path) -> None:
    """In front of servers of its own: one ends."""
    with serving(tmp_path) as served:
        assert status(served.ask("GET", "/health")) == 200
        served.engines["org/words"].close()
        until(lambda: status(served.ask("GET", "/health")) == 503, what="an unhealthy endpoint")
        answer = served.ask("POST", CHAT, '{"model": "org/words"}')
        assert (status(answer), content(answer)["error"]["code"]) == (503, proxy.NOT_SERVED)
        assert served.reached("POST", CHAT, '{"model": "paris"}') == "paris"
