"""A request that is over its limit leaves nothing behind: no thread, no connection."""

import os
import socket
import threading
import time
from contextlib import contextmanager

import pytest
from waiting import HANG_S, until, with_a_limit

from spark_cluster.node import http

HEAD = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n"
TLS_RECORD = b"\x16\x03\x03\x40\x00"
"""The beginning of a handshake message of 16 KiB."""


class Dripping:
    """A server that sends `begin`, and then a byte now and then for as long as it is listened to.

    Attributes:
        dripping: the first of those bytes was sent.
        left: its client is gone.
    """

    def __init__(self, begin: bytes) -> None:
        self.begin = begin
        self.dripping = threading.Event()
        self.left = threading.Event()

    def serve(self, listening: socket.socket) -> None:
        connection = listening.accept()[0]
        with connection:
            connection.recv(65536)
            try:
                connection.sendall(self.begin)
                while True:
                    connection.sendall(b"x")
                    self.dripping.set()
                    time.sleep(0.02)
            except OSError:
                self.left.set()


@contextmanager
def dripping(begin):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = Dripping(begin)
        threading.Thread(target=server.serve, args=(listening,), daemon=True).start()
        yield listening.getsockname()[1], server


@pytest.mark.parametrize(
    ("scheme", "begin"),
    [("http", HEAD), ("http", b"HTTP/1.1 200 OK\r\nX: "), ("https", TLS_RECORD)],
    ids=["body", "headers", "TLS-handshake"],
)
def test_a_server_that_drips_is_let_go(scheme, begin):
    threads = set(threading.enumerate())

    def attempt(limit_s):
        with dripping(begin) as (port, server):
            reply = http.ask({"url": f"{scheme}://127.0.0.1:{port}/", "timeout": limit_s})
            assert reply["reason"] == f"no whole answer within {limit_s:g} s"
            came_so_far = server.dripping.is_set()
            assert server.left.wait(HANG_S)
            return came_so_far

    with_a_limit(attempt)
    until(lambda: set(threading.enumerate()) <= threads, what="the end of the request's thread")


def test_a_connection_that_comes_after_the_limit_is_let_go(monkeypatch):
    """Looking up the name took so long."""
    go_on, connect = threading.Event(), socket.create_connection

    def late(*args, **options):
        go_on.wait()
        return connect(*args, **options)

    monkeypatch.setattr(socket, "create_connection", late)
    with dripping(HEAD) as (port, server):
        reply = http.ask({"url": f"http://127.0.0.1:{port}/", "timeout": 0.01})
        assert reply["status"] == 0
        go_on.set()
        assert server.left.wait(HANG_S)


def test_an_answer_leaves_no_handle_open():
    begin = HEAD.replace(b"close\r\n", b"close\r\nContent-Length: 2\r\n")
    with dripping(begin + b"ok") as (port, server):
        before = len(os.listdir("/proc/self/fd"))
        reply = http.ask({"url": f"http://127.0.0.1:{port}/", "timeout": HANG_S})
        assert reply == {"status": 200, "body": "ok"}
        assert server.left.wait(HANG_S)
        until(lambda: len(os.listdir("/proc/self/fd")) <= before)
