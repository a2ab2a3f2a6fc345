"""Requests to a real HAProxy for models that are loaded on request, with the real loader's answers
behind its socket."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from free_ports import free_port
from proxied import Engine, converse, needs_haproxy, proxied, request, status
from role_samples import a_spark
from waiting import until

from spark_cluster.engine import proxy
from spark_cluster.engine.proxy import ModelServer
from spark_cluster.node import model_loader
from spark_cluster.node.model_loader import LoaderReply, LoaderSocket

pytestmark = needs_haproxy

CHAT = "/v1/chat/completions"
ALWAYS, CODER, ABSENT = "spark-vllm-chat", "spark-vllm-coder", "spark-vllm-absent"


class Asked:
    """A queue that notes which programs were asked for."""

    def __init__(self) -> None:
        self.programs: list[str] = []

    def ask(self, program: str) -> LoaderReply:
        self.programs.append(program)
        return LoaderReply("it is going to be loaded", 7)


@dataclass(frozen=True)
class Served:
    """A proxy: `chat` is always loaded, `coder` on request and loaded, `absent` is not."""

    port: int
    engines: dict[str, Engine]
    queue: Asked
    admin: str

    def ask(self, model: str, more: str = "", method: str = "POST", target: str = CHAT) -> str:
        body = json.dumps({"model": model}) if model else ""
        return converse(self.port, request(method, target, more, body))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("loader-proxy")
    engines = {"chat": Engine(), "coder": Engine()}
    ports = {name: engine.port for name, engine in engines.items()} | {"absent": free_port()}
    servers = tuple(
        ModelServer(
            *("spark1", "127.0.0.1", ports[name], f"spark-vllm-{name}"),
            names=(name,),
            on_request=name != "chat",
        )
        for name in ("chat", "coder", "absent")
    )
    queue: Any = Asked()
    path, run = folder / "l.sock", folder / "run"
    run.mkdir()
    models: dict[str, Any] = {f"spark-vllm-{n}": {"names": [n]} for n in ("coder", "absent")}
    admin = str(run / Path(proxy.ADMIN_SOCKET).name)
    told = {"socket": str(path), "header": proxy.HEADER, "admin": admin}
    loader = LoaderSocket(told, models, queue)
    threading.Thread(target=loader.serve_forever, args=(0.02,), daemon=True).start()
    with proxied(
        folder,
        a_spark(),
        free_port(),
        models=servers,
        runtime=run,
        instead={f"server loader unix@{proxy.LOADER}": f"server loader unix@{path}"},
    ) as port:
        made = Served(port, engines, queue, admin)
        until(lambda: states(made)[ABSENT] == "DOWN", what="the proxy's first look")
        yield made
    loader.shutdown()
    loader.server_close()
    for one in engines.values():
        one.close()


def uses(served: Served) -> dict[str, model_loader.Use]:
    """Return how much each server is used, as the loader reads it."""
    return model_loader.uses(model_loader.command(served.admin, "show stat"))


def states(served: Served) -> dict[str, str]:
    """Return the state of each server, as the proxy tells it."""
    lines = model_loader.command(served.admin, "show stat").lstrip("# ").splitlines()
    names = lines[0].split(",")
    rows = [dict(zip(names, line.split(","), strict=False)) for line in lines[1:] if line]
    return {row["svname"]: row["status"].split()[0] for row in rows}


def test_a_model_that_is_not_loaded_is_answered_by_its_loader(served: Served) -> None:
    answer = served.ask("absent")
    assert status(answer) == 503
    assert "\r\nretry-after: 7\r\n" in answer.lower()
    assert "python" not in answer.lower()
    error = json.loads(answer.partition("\r\n\r\n")[2])["error"]
    assert (error["code"], error["type"]) == ("model_loading", "server_error")
    assert error["message"] == "absent is not loaded: it is going to be loaded"
    assert served.queue.programs[-1] == ABSENT


def test_one_that_is_loaded_is_not_the_loaders(served: Served) -> None:
    before = len(served.queue.programs)
    assert status(served.ask("coder")) == status(served.ask("chat")) == 200
    assert len(served.queue.programs) == before


def test_nobody_outside_says_which_program_is_meant(served: Served) -> None:
    served.ask("absent", f"{proxy.HEADER}: {CODER}\r\n{proxy.HEADER.lower()}: {ALWAYS}\r\n")
    assert served.queue.programs[-1] == ABSENT
    served.ask("chat", f"{proxy.HEADER}: {ABSENT}\r\n")
    assert proxy.HEADER.lower() not in served.engines["chat"].requests[-1][1].lower()


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_request_gets_the_whole_answer(served: Served, chunked: bool) -> None:
    """A server that closes with a part of the body unread takes its answer with it."""
    length = 12 * 2**20
    how = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {length}"
    head = request("POST", f"{CHAT}?model=absent", f"{how}\r\n")
    body = b" " * length
    if chunked:
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (length, body)
    answer = converse(served.port, head + body)
    assert status(answer) == 503
    assert "model_loading" in answer


def test_the_endpoint_is_healthy_without_what_is_loaded_on_request(served: Served) -> None:
    assert status(served.ask("", method="GET", target="/health")) == 200
    listed = served.ask("", method="GET", target="/v1/models")
    found = [one["id"] for one in json.loads(listed.partition("\r\n\r\n")[2])["data"]]
    assert found == ["chat", "coder", "absent"]


def test_a_server_that_is_drained_gets_no_request_and_comes_back(served: Served) -> None:
    """What the loader tells the proxy before and after a stop, in the proxy's own words."""

    def tell(what: str) -> None:
        assert (
            model_loader.command(served.admin, f"set server model-2/{CODER} {what}").strip() == ""
        )

    tell("state drain")
    assert status(served.ask("coder")) == 503
    assert served.queue.programs[-1] == CODER
    tell("health down")
    tell("state ready")
    assert status(served.ask("coder")) in (503, 200)  # its own /health brings it back
    until(lambda: status(served.ask("coder")) == 200, what="the server is seen again")


def test_the_proxy_says_what_is_in_flight_and_how_long_one_is_idle(served: Served) -> None:
    assert status(served.ask("coder")) == 200
    began = time.monotonic()
    rest = {"target": "/stream"}
    threading.Thread(target=served.ask, args=("coder",), kwargs=rest, daemon=True).start()
    until(lambda: uses(served)[CODER].requests)
    use = uses(served)[CODER]
    assert use.requests == 1
    assert use.idle_s is not None
    assert use.idle_s <= time.monotonic() - began + 1
    served.engines["coder"].first_piece_seen.set()
    found = uses(served)
    assert found[ABSENT].idle_s is None
    assert (found[ALWAYS].up, found[CODER].up, found[ABSENT].up) == (True, True, False)


def test_one_that_ends_by_itself_is_the_loaders_after_one_request(served: Served) -> None:
    """The last test of this proxy: a server ends."""
    served.engines["coder"].close()
    first = served.ask("coder")
    assert status(first) == 503
    assert "\r\nretry-after: " in first.lower()
    assert served.ask("coder").count("model_loading") == 1
    assert status(served.ask("", method="GET", target="/health")) == 200
