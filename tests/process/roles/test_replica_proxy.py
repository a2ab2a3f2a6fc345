"""Requests to a real HAProxy in front of several servers: shared out, and lost with one of them."""

from __future__ import annotations

import contextlib
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from free_ports import free_port
from proxied import HANG_S, Engine, converse, needs_haproxy, proxied, request, status
from role_samples import a_spark
from waiting import until

from spark_cluster.engine import proxy
from spark_cluster.engine.proxy import Replica

pytestmark = needs_haproxy

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


@contextlib.contextmanager
def in_front_of(
    folder: Path, engines: list[Engine], instead: dict[str, str] | None = None
) -> Iterator[int]:
    replicas = tuple(
        Replica(f"spark{number}", "127.0.0.1", engine.port)
        for number, engine in enumerate(engines, 1)
    )
    with proxied(folder, a_spark(), free_port(), instead=instead, replicas=replicas) as port:
        yield port


def asked(engine: Engine) -> int:
    """Return how many requests of users reached a server; the proxy's own checks are none."""
    return sum(not line.startswith("GET /health ") for line in engine.lines)


def checks(engine: Engine) -> int:
    return len(engine.lines) - asked(engine)


def test_requests_go_to_the_replica_with_the_fewest(tmp_path: Path, engines: list[Engine]) -> None:
    with in_front_of(tmp_path, engines) as port, contextlib.ExitStack() as opened:
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


def test_a_request_that_was_begun_is_not_sent_twice(tmp_path: Path, engines: list[Engine]) -> None:
    """The replica dies after it has the request: the client is told, and may ask again."""
    with in_front_of(tmp_path, engines) as port:
        for engine in engines:
            engine.dies = True
        answer = converse(port, ASK)
        assert sum(map(asked, engines)) == 1
    assert status(answer) == 502
    assert re.search(r"(?im)^retry-after: 1\r$", answer)
    assert json.loads(answer.partition("\r\n\r\n")[2])["error"]["code"] == "bad_gateway"


def test_no_replica_is_there(tmp_path: Path, engines: list[Engine]) -> None:
    with in_front_of(tmp_path, engines) as port:
        for engine in engines:
            engine.close()
        answer = converse(port, ASK)
    assert status(answer) == 503
    assert re.search(r"(?im)^retry-after: 5\r$", answer)
    assert proxy.refused_by_proxy(503, answer)
