"""A port that leads into the network namespace of a node on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import threading

import pytest
from waiting import HANG_S, until

from spark_cluster.errors import Unreachable
from spark_cluster.runner import namespace_relay
from spark_cluster.runner.namespace_forward import forward_into

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
    monkeypatch.setattr("spark_cluster.loader.trust.foreign", lambda *_: None)  # a test's folder
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


def test_the_relay_ends_when_nobody_reads_it():
    """As when the program that started it was killed."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        process = subprocess.Popen(
            [sys.executable, "-I", namespace_relay.__file__, "1"],
            stdin=listener.fileno(),
            stdout=subprocess.PIPE,
        )
    process.stdout.close()
    until(lambda: process.poll() is not None)
    assert process.returncode == 0


def test_one_direction_may_end_before_the_other():
    with contextlib.ExitStack() as kept:
        server = kept.enter_context(socket.create_server(("127.0.0.1", 0)))
        here, client = socket.socketpair()
        kept.enter_context(client)
        port = server.getsockname()[1]
        carrying = threading.Thread(target=namespace_relay.both_ways, args=(here, port))
        carrying.start()
        accepted = kept.enter_context(server.accept()[0])
        client.sendall(b"question")
        client.shutdown(socket.SHUT_WR)
        received = b""
        while data := accepted.recv(100):
            received += data
        accepted.sendall(b"answer")
        accepted.shutdown(socket.SHUT_WR)
        assert (received, client.recv(100)) == (b"question", b"answer")
        carrying.join(HANG_S)
        assert not carrying.is_alive()
