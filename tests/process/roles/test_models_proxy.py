"""Requests to a real HAProxy in front of several servers: of several models, of one model, and of
models that a real loader behind its socket loads on request."""

import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cases import each_case
from free_ports import free_port
from proxied import AUTH, KEY, Engine, converse, needs_haproxy, proxied, request, status
from role_samples import a_spark
from waiting import HANG_S, until

from spark_cluster.engine import proxy
from spark_cluster.engine.proxy import ModelServer, Replica
from spark_cluster.node import model_loader
from spark_cluster.node.model_loader import LoaderReply, LoaderSocket

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
        before = {name: asked(engine) for name, engine in self.engines.items()}
        answer = self.ask(method, target, body, more)
        assert status(answer) == 200, answer
        found = [n for n, engine in self.engines.items() if asked(engine) > before[n]]
        assert len(found) == 1, found
        return found[0]


def asked(engine: Engine) -> int:
    """Return how many requests of users reached a server; the proxy's own checks are none."""
    return sum(not line.startswith("GET /health ") for line in engine.lines)


def content(answer: str) -> dict[str, Any]:
    return json.loads(answer.partition("\r\n\r\n")[2])


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
def test_a_request_reaches_the_model_that_it_names(served, case):
    words = (case.get("method", "POST"), case.get("target", CHAT), case.get("body", ""))
    if "reaches" in case:
        assert served.reached(*words, case.get("headers", "")) == case["reaches"]
        return
    answer = served.ask(*words)
    assert status(answer) == case["status"], answer
    error = content(answer)["error"]
    assert (error["code"], error["type"]) == (case["code"], "invalid_request_error")
    assert case.get("says", "") in error["message"]


def test_the_name_may_stand_behind_a_long_prompt(served):
    long = json.dumps({"messages": "x" * (proxy.BUFFER // 2), "model": "org/words"})
    assert served.reached("POST", CHAT, long) == "org/words"
    too_long = json.dumps({"messages": "x" * (proxy.BUFFER + 10), "model": "org/words"})
    assert status(served.ask("POST", CHAT, too_long)) == 400
    assert served.reached("POST", f"{CHAT}?model=org%2Fwords", too_long) == "org/words"


def test_a_body_in_chunks_is_read_whole(served):
    parts = (b'{"stream": true, "mod', b'el": "org/words"}')
    body = b"".join(b"%x\r\n%s\r\n" % (len(p), p) for p in parts) + b"0\r\n\r\n"
    head = request("POST", CHAT, f"{AUTH}Transfer-Encoding: chunked\r\n")
    before = asked(served.engines["org/words"])
    converse(served.port, head + body)
    assert asked(served.engines["org/words"]) == before + 1


def test_all_models_are_listed(served):
    found = content(served.ask("GET", "/v1/models"))
    assert [one["id"] for one in found["data"]] == [
        *("paris", "gpt-4o", "org/words", "text-embedding-3-small", "whisper", ODD)
    ]


def test_nothing_is_told_without_the_key(served):
    for method, target in (("GET", "/v1/models"), ("POST", CHAT), ("GET", "/version")):
        assert status(converse(served.port, request(method, target))) == 401


def test_the_endpoint_is_healthy_when_every_model_is(tmp_path):
    """In front of servers of its own: one ends."""
    with serving(tmp_path) as served:
        assert status(served.ask("GET", "/health")) == 200
        served.engines["org/words"].close()
        until(lambda: status(served.ask("GET", "/health")) == 503, what="an unhealthy endpoint")
        answer = served.ask("POST", CHAT, '{"model": "org/words"}')
        assert (status(answer), content(answer)["error"]["code"]) == (503, proxy.NOT_SERVED)
        assert served.reached("POST", CHAT, '{"model": "paris"}') == "paris"


# -- replicas of one model ---------------------------------------------------------------------

ASK, SLOW = request("GET", "/v1/models"), request("GET", "/slow")
NEVER = {
    "default-server check inter 1s fastinter 500ms downinter 1s fall 2 rise 1": (
        "default-server check inter 1h fall 2 rise 1"
    )
}
"""No check tells within the test that a server is gone."""


@pytest.fixture
def engines() -> Iterator[list[Engine]]:
    served = [Engine(), Engine()]
    yield served
    for one in served:
        one.close()


@contextmanager
def in_front_of(
    folder: Path, engines: list[Engine], instead: dict[str, str] | None = None
) -> Iterator[int]:
    replicas = tuple(
        Replica(f"spark{number}", "127.0.0.1", engine.port)
        for number, engine in enumerate(engines, 1)
    )
    with proxied(folder, a_spark(), free_port(), instead=instead, replicas=replicas) as port:
        yield port


def checks(engine: Engine) -> int:
    return len(engine.lines) - asked(engine)


def test_requests_go_to_the_replica_with_the_fewest(tmp_path, engines):
    with in_front_of(tmp_path, engines) as port, ExitStack() as opened:
        for number in range(1, 7):
            connection = socket.create_connection(("127.0.0.1", port), HANG_S)
            opened.enter_context(connection).sendall(SLOW)
            until(lambda number=number: sum(map(asked, engines)) == number)
        assert [asked(engine) for engine in engines] == [3, 3]


def test_a_request_that_was_not_begun_goes_to_the_other_replica(tmp_path, engines):
    """Before any check has seen that one is gone."""
    with in_front_of(tmp_path, engines, NEVER) as port:
        engines[1].close()
        assert [status(converse(port, ASK)) for _ in range(10)] == [200] * 10
        assert asked(engines[0]) == 10


def test_a_replica_that_fails_its_checks_gets_no_request_until_it_is_back(tmp_path, engines):
    with in_front_of(tmp_path, engines) as port:
        engines[1].healthy = False
        before = checks(engines[1])
        until(lambda: checks(engines[1]) >= before + 4)
        assert [status(converse(port, ASK)) for _ in range(6)] == [200] * 6
        assert [asked(engine) for engine in engines] == [6, 0]
        engines[1].healthy = True
        before = checks(engines[1])
        until(lambda: checks(engines[1]) >= before + 3)
        assert [status(converse(port, ASK)) for _ in range(6)] == [200] * 6
        assert asked(engines[1]) > 0


def test_a_request_that_was_begun_is_not_sent_twice(tmp_path, engines):
    """The replica dies after it has the request: the client is told, and may ask again."""
    with in_front_of(tmp_path, engines) as port:
        for engine in engines:
            engine.dies = True
        answer = converse(port, ASK)
        assert sum(map(asked, engines)) == 1
    assert status(answer) == 502
    assert re.search(r"(?im)^retry-after: 1\r$", answer)
    assert content(answer)["error"]["code"] == "bad_gateway"


def test_no_replica_is_there(tmp_path, engines):
    with in_front_of(tmp_path, engines) as port:
        for engine in engines:
            engine.close()
        answer = converse(port, ASK)
    assert status(answer) == 503
    assert re.search(r"(?im)^retry-after: 5\r$", answer)
    assert proxy.refused_by_proxy(503, answer)


# -- models that are loaded on request ---------------------------------------------------------

ALWAYS, CODER, ABSENT = "spark-vllm-chat", "spark-vllm-coder", "spark-vllm-absent"


class Asked:
    """A queue that notes which programs were asked for."""

    def __init__(self) -> None:
        self.programs: list[str] = []

    def ask(self, program: str) -> LoaderReply:
        self.programs.append(program)
        return LoaderReply("it is going to be loaded", 7)


@dataclass(frozen=True)
class Loading:
    """A proxy: `chat` is always loaded, `coder` on request and loaded, `absent` is not."""

    port: int
    engines: dict[str, Engine]
    queue: Asked
    admin: str

    def ask(self, model: str, more: str = "", method: str = "POST", target: str = CHAT) -> str:
        body = json.dumps({"model": model}) if model else ""
        return converse(self.port, request(method, target, more, body))


@pytest.fixture(scope="module")
def loading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loading]:
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
        made = Loading(port, engines, queue, admin)
        until(lambda: states(made)[ABSENT] == "DOWN", what="the proxy's first look")
        yield made
    loader.shutdown()
    loader.server_close()
    for one in engines.values():
        one.close()


def uses(loading: Loading) -> dict[str, model_loader.Use]:
    """Return how much each server is used, as the loader reads it."""
    return model_loader.uses(model_loader.command(loading.admin, "show stat"))


def states(loading: Loading) -> dict[str, str]:
    """Return the state of each server, as the proxy tells it."""
    lines = model_loader.command(loading.admin, "show stat").lstrip("# ").splitlines()
    names = lines[0].split(",")
    rows = [dict(zip(names, line.split(","), strict=False)) for line in lines[1:] if line]
    return {row["svname"]: row["status"].split()[0] for row in rows}


def test_a_model_that_is_not_loaded_is_answered_by_its_loader(loading):
    answer = loading.ask("absent")
    assert status(answer) == 503
    assert "\r\nretry-after: 7\r\n" in answer.lower()
    assert "python" not in answer.lower()
    error = content(answer)["error"]
    assert (error["code"], error["type"]) == ("model_loading", "server_error")
    assert error["message"] == "absent is not loaded: it is going to be loaded"
    assert loading.queue.programs[-1] == ABSENT


def test_one_that_is_loaded_is_not_the_loaders(loading):
    before = len(loading.queue.programs)
    assert status(loading.ask("coder")) == status(loading.ask("chat")) == 200
    assert len(loading.queue.programs) == before


def test_nobody_outside_says_which_program_is_meant(loading):
    loading.ask("absent", f"{proxy.HEADER}: {CODER}\r\n{proxy.HEADER.lower()}: {ALWAYS}\r\n")
    assert loading.queue.programs[-1] == ABSENT
    loading.ask("chat", f"{proxy.HEADER}: {ABSENT}\r\n")
    assert proxy.HEADER.lower() not in loading.engines["chat"].requests[-1][1].lower()


@pytest.mark.parametrize("chunked", [False, True])
def test_a_large_request_gets_the_whole_answer(loading, chunked):
    """A server that closes with a part of the body unread takes its answer with it."""
    length = 12 * 2**20
    how = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {length}"
    head = request("POST", f"{CHAT}?model=absent", f"{how}\r\n")
    body = b" " * length
    if chunked:
        body = b"%x\r\n%s\r\n0\r\n\r\n" % (length, body)
    answer = converse(loading.port, head + body)
    assert status(answer) == 503
    assert "model_loading" in answer


def test_the_endpoint_is_healthy_without_what_is_loaded_on_request(loading):
    assert status(loading.ask("", method="GET", target="/health")) == 200
    listed = loading.ask("", method="GET", target="/v1/models")
    found = [one["id"] for one in content(listed)["data"]]
    assert found == ["chat", "coder", "absent"]


def test_a_server_that_is_drained_gets_no_request_and_comes_back(loading):
    """What the loader tells the proxy before and after a stop, in the proxy's own words."""

    def tell(what: str) -> None:
        assert (
            model_loader.command(loading.admin, f"set server model-2/{CODER} {what}").strip() == ""
        )

    tell("state drain")
    assert status(loading.ask("coder")) == 503
    assert loading.queue.programs[-1] == CODER
    tell("health down")
    tell("state ready")
    assert status(loading.ask("coder")) in (503, 200)  # its own /health brings it back
    until(lambda: status(loading.ask("coder")) == 200, what="the server is seen again")


def test_the_proxy_says_what_is_in_flight_and_how_long_one_is_idle(loading):
    assert status(loading.ask("coder")) == 200
    began = time.monotonic()
    rest = {"target": "/stream"}
    threading.Thread(target=loading.ask, args=("coder",), kwargs=rest, daemon=True).start()
    until(lambda: uses(loading)[CODER].requests)
    use = uses(loading)[CODER]
    assert use.requests == 1
    assert use.idle_s <= time.monotonic() - began + 1
    loading.engines["coder"].first_piece_seen.set()
    found = uses(loading)
    assert found[ABSENT].idle_s is None
    assert (found[ALWAYS].up, found[CODER].up, found[ABSENT].up) == (True, True, False)


def test_one_that_ends_by_itself_is_the_loaders_after_one_request(loading):
    """The last test of this proxy: a server ends."""
    loading.engines["coder"].close()
    first = loading.ask("coder")
    assert status(first) == 503
    assert "\r\nretry-after: " in first.lower()
    assert loading.ask("coder").count("model_loading") == 1
    assert status(loading.ask("", method="GET", target="/health")) == 200
