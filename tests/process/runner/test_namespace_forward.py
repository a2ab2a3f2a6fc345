"""A port that leads into the network namespace of a node on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys

import pytest
from waiting import HANG_S, until

from spark_cluster.errors import Unreachable
from spark_cluster_lab import namespace_relay
from spark_cluster_lab.namespaces import forward_into

SERVER = """\
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    accepted, _ = listener.accept()
    with accepted:
        accepted.sendall(accepted.recv(100).upper())
"""
IN_A_NAMESPACE = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]


@pytest.fixture
def node(tmp_path):
    """A program in a network namespace of its own, and the port that it listens on there."""
    if os.geteuid() != 0 or not (shutil.which("unshare") and shutil.which("ip")):
        pytest.skip("a network namespace needs root, unshare and ip")
    argv = [*IN_A_NAMESPACE, sys.executable, "-c", SERVER]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        port = int(process.stdout.readline())
        file = tmp_path / "leader"
        file.write_text(str(process.pid))
        file.chmod(0o644)
        yield file, port
        process.kill()


def asked(port):
    with socket.create_connection(("127.0.0.1", port), timeout=HANG_S) as client:
        client.sendall(b"hello")
        return client.recv(100)


def test_a_port_leads_into_a_namespace(node, monkeypatch):
    file, port = node
    monkeypatch.setattr(
        "spark_cluster.config.extension.foreign", lambda *_: None
    )  # a test's folder
    with pytest.raises(ConnectionRefusedError):
        asked(port)
    with forward_into("spark1", file, port) as here:
        assert asked(here) == b"HELLO"
        assert asked(here) == b"HELLO", "again"
    with pytest.raises(ConnectionRefusedError):
        asked(here)


def test_a_node_that_is_off(tmp_path):
    with (
        pytest.raises(Unreachable, match="is not running"),
        forward_into("spark1", tmp_path / "none", 1),
    ):
        raise AssertionError("there is no node")


@contextlib.contextmanager
def relay(port):
    """Yield the relay, as nsenter starts it, and the port that it listens on."""
    argv = [sys.executable, "-I", namespace_relay.__file__, str(port)]
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        subprocess.Popen(argv, stdin=listener.fileno(), stdout=subprocess.PIPE) as process,
    ):
        here = listener.getsockname()[1]
        listener.close()
        yield process, here
        process.kill()


def test_the_relay_ends_when_nobody_reads_it():
    """As when the program that started it was killed, also while it carries."""
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        relay(server.getsockname()[1]) as (process, here),
        socket.create_connection(("127.0.0.1", here), timeout=HANG_S) as client,
        server.accept()[0] as accepted,
    ):
        process.stdout.close()
        until(lambda: process.poll() is not None)
        assert process.returncode == 0
        assert (client.recv(1), accepted.recv(1)) == (b"", b"")


def test_one_direction_may_end_before_the_other():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        relay(server.getsockname()[1]) as (_, here),
        socket.create_connection(("127.0.0.1", here), timeout=HANG_S) as client,
    ):
        accepted = server.accept()[0]
        client.sendall(b"question")
        client.shutdown(socket.SHUT_WR)
        received = b""
        while data := accepted.recv(100):
            received += data
        accepted.sendall(b"answer")
        accepted.close()
        assert (received, client.recv(100)) == (b"question", b"answer")
        assert client.recv(100) == b""


def test_a_port_at_which_nothing_listens():
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with relay(port) as (process, here):
        for _ in range(2):
            with socket.create_connection(("127.0.0.1", here), timeout=HANG_S) as client:
                assert client.recv(1) == b""
        assert process.poll() is None
