"""Requests to a real HAProxy with the role's configuration: which pass, and which need the key."""

import contextlib
import json
import re
import select
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from cases import each_case
from proxied import AUTH, KEY, LATE_S, Engine, converse, needs_haproxy, proxied, request, status
from role_samples import a_spark
from waiting import HANG_S, until

from spark_cluster.engine import proxy
from spark_cluster.node.http import ask

pytestmark = needs_haproxy

WEBSOCKET = (
    "Host: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)


@pytest.fixture
def guarded(tmp_path: Path, engine: Engine) -> Iterator[int]:
    """The port of a proxy that asks for the key."""
    with proxied(tmp_path, a_spark(), engine.port, api_key=KEY) as port:
        yield port


def error(answer: str) -> dict[str, Any]:
    return json.loads(answer.partition("\r\n\r\n")[2])["error"]


# -- the key -----------------------------------------------------------------------------------

PATHS = (
    "/", "/v1/models", "/v1/chat/completions", "/v2/embed", "/invocations", "/tokenize",
    "/detokenize", "/pooling", "/classify", "/score", "/rerank", "/metrics", "/version", "/load",
    "/ping", "/docs", "/openapi.json", "/inference/v1/generate", "/health/",
)  # fmt: skip
TRICKS = (
    "//v1/models", "/%2e%2e/health", "/health/../v1/models", "/health/%2e%2e/v1/models",
    "/./health", "//health", "/health?x", "/health?", "/health;x", "/health%00", "/health%20",
    "/HEALTH", "/%68ealth", "/health\\..\\v1", "http://x/health", "http://x/v1/models",
    "http://x//health", "*",
)  # fmt: skip


def test_nothing_passes_without_the_key(guarded, engine):
    for target, method in product([*PATHS, *TRICKS], ["GET", "POST", "OPTIONS", "HEAD"]):
        answer = converse(guarded, request(method, target))
        # HAProxy itself takes `*` for no other method than OPTIONS.
        refused = status(answer) == 401 or (target == "*" and status(answer) == 400)
        assert refused, (method, target, answer)
    assert engine.requests == []


@each_case(__file__, "endpoint_requests.json")
def test_a_request_passes_or_not(guarded, engine, case):
    """`only` are all of its headers; what passes is shown to vLLM without the key."""
    headers = case.get("only", ["Host: x", "Connection: close", *case.get("headers", [])])
    lines = [case["line"], *headers, "", case.get("body", "")]
    answer = converse(guarded, "\r\n".join(lines).replace("{KEY}", KEY), end=b"\r\n\r\n")
    assert str(status(answer)) in case["status"].split()
    assert engine.lines == case.get("reaches", [])
    assert not any(KEY in head for _, head in engine.requests)


def test_the_digest_that_the_node_holds_is_no_key(guarded, tmp_path):
    digest = (tmp_path / Path(proxy.KEYS).name).read_text().strip()
    assert KEY not in digest
    for value in (digest, digest.lower()):
        more = f"Authorization: Bearer {value}\r\n"
        assert status(converse(guarded, request("GET", "/v1/models", more))) == 401


def test_only_its_own_user_reaches_its_admin_socket(tmp_path, engine):
    """Who reaches it adds keys. The unit's folder is closed as well; either is enough."""
    with tempfile.TemporaryDirectory(dir="/tmp") as runtime:
        place = Path(runtime)
        with proxied(tmp_path, a_spark(), engine.port, runtime=place, api_key=KEY):
            mode = (place / Path(proxy.ADMIN_SOCKET).name).stat().st_mode
    assert mode & 0o777 == 0o600


def test_what_is_said_without_a_key(guarded):
    answer = converse(guarded, request("GET", "/v1/models"))
    assert re.search(r"(?im)^www-authenticate: Bearer\b", answer)
    assert re.search(r"(?im)^content-type: application/json\r$", answer)
    assert error(answer)["code"] == "invalid_api_key"


def test_the_key_opens_every_path(guarded, engine):
    for target in PATHS:
        assert status(converse(guarded, request("GET", target, AUTH))) == 200, target
    assert engine.lines == [f"GET {target} HTTP/1.1" for target in PATHS]


def test_vllm_does_not_see_the_key_and_is_not_told_who_asks_by_who_asks(guarded, engine):
    lies = "X-Forwarded-For: 10.1.1.1\r\nForwarded: for=10.1.1.1\r\nX-Forwarded-Proto: https\r\n"
    converse(guarded, request("GET", "/v1/models", f"{AUTH}Authorization: x\r\n{lies}"))
    ((_, head),) = engine.requests
    assert KEY not in head
    assert "uthorization" not in head
    assert "10.1.1.1" not in head
    assert "x-forwarded-for: 127.0.0.1\n" in head
    assert "x-forwarded-proto: http\n" in head


def test_a_second_request_behind_health_needs_the_key_too(guarded, engine):
    first = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = converse(guarded, first.encode() + request("GET", "/v1/models"))
    assert re.findall(r"HTTP/1\.1 (\d+)", answer) == ["200", "401"]
    assert engine.lines == ["GET /health HTTP/1.1"]


# -- what must come through whole --------------------------------------------------------------


def test_a_stream_comes_in_pieces(guarded, engine):
    with socket.create_connection(("127.0.0.1", guarded), timeout=HANG_S) as connection:
        connection.sendall(request("GET", "/stream", AUTH))
        got = b""
        while b"data: 1" not in got:  # the second piece is sent only after the first was seen
            got += connection.recv(4096)
        assert b"data: 2" not in got
        engine.first_piece_seen.set()
        while piece := connection.recv(4096):
            got += piece
    assert b"data: 2" in got


def test_a_large_body(guarded, engine):
    size = 50 * 2**20
    head = request("POST", "/v1/chat/completions", AUTH, b"x" * size)
    assert converse(guarded, head).endswith(f"completions {size}")


def test_a_request_whose_user_has_gone_is_ended(guarded, engine):
    with socket.create_connection(("127.0.0.1", guarded), timeout=HANG_S) as connection:
        connection.sendall(f"POST /slow HTTP/1.1\r\nHost: x\r\n{AUTH}\r\n".encode())
        while not engine.requests:
            pass
    assert engine.gone.wait(HANG_S), "vLLM would go on computing for nobody"


def test_headers_have_a_limit(guarded, engine):
    assert status(converse(guarded, request("GET", "/a", f"{AUTH}X: {'x' * 20_000}\r\n"))) == 400
    many = "".join(f"X-{number}: x\r\n" for number in range(200))
    assert status(converse(guarded, request("GET", "/a", AUTH + many))) == 400
    assert engine.requests == []


def test_vllm_is_not_there(guarded, engine):
    engine.close()
    answer = converse(guarded, request("GET", "/health"))
    assert status(answer) == 503
    said = error(answer)
    assert said["code"] == proxy.NOT_SERVED
    assert "loading" in said["message"]
    assert proxy.refused_by_proxy(503, answer)
    assert not proxy.refused_by_proxy(503, "")  # vLLM's own, when its engine is dead


# -- without a key, with TLS -------------------------------------------------------------------


def test_tls_with_the_certificate_that_was_made(tmp_path, engine):
    node = a_spark()
    with proxied(tmp_path, node, engine.port, api_key=KEY, tls="self-signed") as port:
        certificate = tmp_path / Path(proxy.SELF_SIGNED).name
        asked = {
            "url": f"https://127.0.0.1:{port}/v1/models",
            "headers": {"Authorization": f"Bearer {KEY}"},
        }
        told = ask({**asked, "certificate": str(certificate)})
        assert (told["status"], told["body"]) == (200, "/v1/models 0")
        shown = subprocess.run(
            ["openssl", "x509", "-in", str(certificate), "-noout", "-fingerprint", "-sha256"],
            capture_output=True, text=True, check=True,
        ).stdout.strip()  # fmt: skip
        assert shown.partition("=")[2] == proxy.colons(told["certificate"])
        assert "x-forwarded-proto: https" in engine.requests[0][1]
        assert ask({**asked})["status"] == 0, "nobody vouches for it"
        context = ssl.create_default_context(cafile=str(certificate))
        context.set_alpn_protocols(["h2", "http/1.1"])
        for name in ("127.0.0.1", node.name):
            with socket.create_connection(("127.0.0.1", port), timeout=HANG_S) as plain:
                secured = context.wrap_socket(plain, server_hostname=name)
                assert secured.selected_alpn_protocol() == "http/1.1"
        assert "200" not in converse(port, request("GET", "/health"), end=b"\r\n"), "not plain"


def test_another_certificate_than_the_pinned_one(tmp_path, engine):
    with proxied(tmp_path, a_spark(), engine.port, tls="self-signed") as port:
        subprocess.run(
            ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
             "-noenc", "-subj", "/CN=other", "-keyout", "/dev/null",
             "-out", str(tmp_path / "other.pem")],
            capture_output=True, check=True,
        )  # fmt: skip
        told = ask(
            {"url": f"https://127.0.0.1:{port}/x", "certificate": str(tmp_path / "other.pem")}
        )
        assert told["status"] == 0
        assert "certificate" in told["reason"]
        assert engine.requests == []


# -- who says nothing --------------------------------------------------------------------------


SHORT = {
    "timeout client 60s": "timeout client 1s",
    "timeout http-request 15s": "timeout http-request 1s",
}
"""Half of `LATE_S`."""


@contextlib.contextmanager
def silent(port: int, count: int) -> Iterator[list[socket.socket]]:
    """So many connections that say nothing; some may be reset already, even while they connect."""
    with contextlib.ExitStack() as opened:
        connections = [opened.enter_context(socket.socket()) for _ in range(count)]
        for connection in connections:
            connection.settimeout(HANG_S)
            connection.bind(("127.0.0.1", 0))
            with contextlib.suppress(ConnectionResetError):
                connection.connect(("127.0.0.1", port))
        yield connections


def reset(connections: list[socket.socket]) -> int:
    """Return how many of these connections the other side has ended."""
    return sum(bool(select.select([c], [], [], 0)[0]) for c in connections)


@contextlib.contextmanager
def connected(port: int, tls: str | None, source: str = "") -> Iterator[socket.socket]:
    """A connection of a client that trusts whoever it meets."""
    with socket.create_connection(("127.0.0.1", port), HANG_S, (source, 0)) as plain:
        yield ssl._create_unverified_context().wrap_socket(plain) if tls else plain


def health(port: int, tls: str | None = None, source: str = "127.0.1.2") -> str:
    """Return the reply to an honest client; empty when it does not get that far."""
    with contextlib.suppress(OSError), connected(port, tls, source) as connection:
        connection.sendall(request("GET", "/health"))
        return connection.recv(4096).decode()
    return ""


KINDS = pytest.mark.parametrize("tls", [None, "self-signed"], ids=["plain", "TLS"])


@KINDS
def test_who_connects_and_says_nothing_is_cut_off(tmp_path, engine, tls):
    """All places are taken, by any number of addresses: only for as long as silence is suffered."""
    few = {**SHORT, "maxconn 4096": "maxconn 20"}
    with proxied(tmp_path, a_spark(), engine.port, tls=tls, instead=few) as port, silent(port, 60):
        assert health(port, tls).startswith("HTTP/1.1 200")


@KINDS
def test_one_address_does_not_take_all_places(tmp_path, engine, tls):
    """The limits as they are: the honest client is served at once, from another network."""
    with (
        proxied(tmp_path, a_spark(), engine.port, tls=tls, host="0.0.0.0") as port,
        silent(port, 600) as connections,
    ):
        assert health(port, tls).startswith("HTTP/1.1 200")
        assert health(port, tls, "127.0.0.1") == ""
        until(lambda: reset(connections) >= 600 - 512)
        assert reset(connections) == 600 - 512


def test_many_requests_of_one_load_test_and_of_the_loopback(tmp_path, engine):
    with proxied(tmp_path, a_spark(), engine.port, host="0.0.0.0") as port, silent(port, 500):
        assert health(port, source="127.0.0.1").startswith("HTTP/1.1 200")
    with proxied(tmp_path, a_spark(), engine.port) as port, silent(port, 600):
        assert health(port, source="127.0.0.1").startswith("HTTP/1.1 200")


@KINDS
def test_a_client_that_waits_for_vllm_is_not_cut_off(tmp_path, engine, tls):
    """Not before the first byte and not in a pause, however much longer than a client's limit."""
    with (
        proxied(tmp_path, a_spark(), engine.port, tls=tls, instead=SHORT) as port,
        connected(port, tls) as connection,
    ):
        began = time.monotonic()
        connection.sendall(request("POST", "/late", body="abc"))
        answer = b"".join(iter(lambda: connection.recv(4096), b"")).decode()
    assert status(answer) == 200
    assert answer.endswith("latelate")
    assert time.monotonic() - began >= 2 * LATE_S


def test_a_websocket_may_be_silent_longer_than_a_request(tmp_path, engine):
    with (
        proxied(tmp_path, a_spark(), engine.port, instead=SHORT) as port,
        socket.create_connection(("127.0.0.1", port), HANG_S) as connection,
    ):
        connection.sendall(f"GET /v1/realtime HTTP/1.1\r\n{WEBSOCKET}\r\n".encode())
        assert connection.recv(4096).startswith(b"HTTP/1.1 101")
        assert select.select([connection], [], [], LATE_S)[0] == [], "it is still open"
