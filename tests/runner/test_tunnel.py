"""The tunnel over a real sshd: it carries, is made again when cut, and says what does not work."""

from __future__ import annotations

import errno
import http.server
import json
import os
import queue
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import ClassVar

import pytest
from free_ports import free_port
from own_sshd import start_sshd
from waiting import HANG_S, until

from spark_cluster.config.inventory_schema import ServeEntry
from spark_cluster.errors import Unreachable, UsageError
from spark_cluster.runner import port_forward, tunnel
from spark_cluster.runner.tunnel import Tunnel, TunnelEvent
from spark_cluster.serving.proxy import Access
from spark_cluster.serving.tunnel_end import url_on_head

CHECKOUT = Path(__file__).parents[2]


class Endpoint(http.server.BaseHTTPRequestHandler):
    """Answers with the path; `/stream` waits in the middle of its answer."""

    go_on = threading.Event()

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.path.encode())
        if self.path == "/stream":
            self.wfile.flush()
            self.go_on.wait(HANG_S)
            self.wfile.write(b" whole")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def endpoint():
    Endpoint.go_on.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Endpoint)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server.server_address[1]
    Endpoint.go_on.set()
    server.shutdown()
    server.server_close()


class Running:
    """A tunnel in a thread, until its test ends."""

    started: ClassVar[list[Running]] = []

    def __init__(self, ssh, remote_port):
        self.events: queue.Queue[TunnelEvent] = queue.Queue()
        self.listener = port_forward.listen(0)
        self.port = self.listener.getsockname()[1]
        self.connections = []
        there = f"http://127.0.0.1:{remote_port}/v1"
        self.error = None
        self.ended = False

        def dial():
            if self.ended:
                raise KeyboardInterrupt
            self.connections.append(ssh())
            return self.connections[-1]

        made = Tunnel("spark1", dial, lambda _: there, self.listener, self.events.put)

        def run():
            try:
                made.run()
            except Unreachable as error:
                self.error = error
            except KeyboardInterrupt:
                pass

        threading.Thread(target=run, daemon=True).start()
        self.started.append(self)

    def end(self):
        self.ended = True
        for connection in self.connections:
            connection.close()

    def next(self, kind):
        event = self.events.get(timeout=HANG_S)
        assert event.event == kind, event
        return event

    def get(self, path="/models"):
        url = f"http://127.0.0.1:{self.port}{path}"
        with urllib.request.urlopen(url, timeout=HANG_S) as answer:
            return answer.read().decode()


@pytest.fixture(autouse=True)
def ended():
    """Let no tunnel try again and again while other tests run."""
    yield
    while Running.started:
        Running.started.pop().end()


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr(tunnel, "PAUSES_S", (0.01, 0.02))


def test_requests_pass_and_the_url_is_told(ssh, trusted, endpoint):
    running = Running(ssh, endpoint)
    event = running.next("open")
    assert event.url == f"http://127.0.0.1:{running.port}/v1"
    assert event.to == f"http://127.0.0.1:{endpoint}/v1"
    assert running.get("/a") == "/a"
    found = []
    threads = [
        threading.Thread(target=lambda n=n: found.append(running.get(f"/{n}"))) for n in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_S)
    assert sorted(found) == sorted(f"/{n}" for n in range(8))


def test_a_cut_connection_is_made_again_and_a_cut_answer_is_an_error(ssh, trusted, endpoint, fast):
    running = Running(ssh, endpoint)
    running.next("open")
    with socket.create_connection(("127.0.0.1", running.port), timeout=HANG_S) as client:
        client.sendall(b"GET /stream HTTP/1.0\r\n\r\n")
        received = b""
        while b"/stream" not in received:
            received += client.recv(4096)
        running.connections[0].open().transport.close()
        with pytest.raises(ConnectionResetError):
            while client.recv(4096):
                pass
    cut = running.next("cut")
    assert cut.message == "the connection was cut"
    running.next("open")
    assert running.get("/again") == "/again"


def test_it_tries_again_until_the_node_is_back(sshd, home, ssh, endpoint, fast, tmp_path):
    server = start_sshd(tmp_path / "own", key=sshd.key)
    (home / ".ssh" / "known_hosts").write_text(server.host_line)
    running = Running(lambda: ssh(port=server.port), endpoint)
    running.next("open")
    server.stop()
    running.connections[0].open().transport.close()
    running.next("cut")
    refused = running.next("cut")
    assert "refused the connection" in refused.message
    with pytest.raises(OSError):
        running.get()
    server = start_sshd(tmp_path / "own", key=sshd.key, port=server.port)
    try:
        until(lambda: running.events.get(timeout=HANG_S).event == "open")
        assert running.get("/back") == "/back"
    finally:
        server.stop()


def test_an_endpoint_that_does_not_listen_is_reported_once(ssh, trusted):
    port = free_port()
    running = Running(ssh, port)
    running.next("open")
    for _ in range(2):
        with pytest.raises((OSError, urllib.error.URLError)):
            running.get()
    event = running.next("refused")
    assert event.message == f"nothing listens at 127.0.0.1:{port} there"
    assert "status" in event.hint
    assert running.events.empty()


def test_an_sshd_that_forbids_forwarding_is_named(sshd, home, ssh, endpoint, tmp_path):
    server = start_sshd(tmp_path / "own", key=sshd.key, more="PermitOpen none\n")
    (home / ".ssh" / "known_hosts").write_text(server.host_line)
    running = Running(lambda: ssh(port=server.port), endpoint)
    try:
        running.next("open")
        with pytest.raises((OSError, urllib.error.URLError)):
            running.get()
        assert "forbids forwarding" in running.next("refused").message
    finally:
        server.stop()


def test_the_first_connection_must_be_made(ssh, trusted):
    closed = free_port()
    running = Running(lambda: ssh(port=closed), 8000)
    until(lambda: running.error)
    assert "refused the connection" in running.error.message


def test_a_port_that_is_taken_is_refused():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UsageError, match=f"port {port} .*another program listens") as caught:
            port_forward.listen(port)
    assert "--port" in caught.value.hint


def test_the_port_is_on_the_loopback_only():
    with port_forward.listen(0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"
        other = socket.socket()
        try:  # all of 127.0.0.0/8 is this machine; 127.0.0.2 stands for its other addresses
            assert other.connect_ex(("127.0.0.2", listener.getsockname()[1])) in (
                errno.ECONNREFUSED,
                errno.EADDRNOTAVAIL,
            )
        finally:
            other.close()


def test_a_server_that_is_silent_is_taken_to_be_cut(ssh, trusted, monkeypatch):
    monkeypatch.setattr(tunnel, "KEEPALIVE_S", 0.01)
    monkeypatch.setattr(tunnel, "ANSWERS_WITHIN_S", 0.2)
    connection = ssh()
    transport = connection.open().transport
    monkeypatch.setattr(transport, "global_request", lambda *_, **__: transport.join(HANG_S))
    assert tunnel.watch(transport) == "sshd did not answer within 0.2 s"


@pytest.mark.parametrize(
    ("serve", "access", "expected"),
    [
        ({}, None, "http://127.0.0.1:8000/v1"),
        ({"port": 9000}, None, "http://127.0.0.1:9000/v1"),
        ({"bind": "management", "open": True}, None, "http://10.0.0.5:8000/v1"),
        ({"bind": "10.1.1.1", "tls": "self-signed"}, None, "https://10.1.1.1:8000/v1"),
        ({}, Access("https://10.0.0.5:8443/v1", True, "self-signed"), "https://10.0.0.5:8443/v1"),
        ({}, Access("nonsense"), "http://127.0.0.1:8000/v1"),
        ({}, Access("http://a:b/v1"), "http://127.0.0.1:8000/v1"),
    ],
)
def test_where_the_endpoint_is(serve, access, expected):
    class Head:
        address = "10.0.0.5"

    entry = ServeEntry.model_validate(serve)
    assert url_on_head(access, entry, Head()) == expected  # type: ignore[arg-type]


def test_the_command_carries_until_ctrl_c(sshd, trusted, endpoint, tmp_path, home):
    port = free_port()
    (tmp_path / "inventory.yaml").write_text(
        f"nodes:\n  spark1:\n    address: 127.0.0.1\n    port: {sshd.port}\n    roles: [head]\n"
        f"    identity_file: {sshd.key}\nserve: {{port: {endpoint}}}\n"
    )
    command = [sys.executable, "-m", "spark_cluster", "tunnel", "--port", str(port), "--json"]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "HOME": str(home)}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        event = json.loads(process.stdout.readline())
        assert (event["event"], event["url"]) == ("open", f"http://127.0.0.1:{port}/v1")
        url = f"http://127.0.0.1:{port}/health"
        with urllib.request.urlopen(url, timeout=HANG_S) as answer:
            assert answer.read() == b"/health"
        process.send_signal(signal.SIGINT)
        assert process.wait(HANG_S) == 0
