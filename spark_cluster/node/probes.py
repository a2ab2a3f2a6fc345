"""Small programs that measure or ask from a node, for the time of one question.

Each is a function whose words are texts (`own_program`), and which prints its answer.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import select
import socket
import statistics
import struct
import sys
import time
from concurrent.futures import ThreadPoolExecutor

# Which nodes are heard at which port: frames of raw Ethernet, which no address is needed for.

KIND = 0x88B5
"""EtherType for experiments within one network (IEEE 802)."""

EVERY_S = 0.1
"""Seconds between two frames."""

MOST_HEARD = 1000
"""Names after which no more are listened for: what hears the token can give itself any number."""

SHORTEST = 60
"""Bytes of an Ethernet frame at least, without its checksum."""


def neighbours(token: str, node: str, seconds: str, *names: str) -> None:
    """Send this node's name over interfaces for some seconds; print [interface, node heard there].

    Args:
        token: of this question; frames with another one are not ours.
    """
    ports = {_port(name): name for name in names}
    heard: set[tuple[str, str]] = set()
    sent, until = 0.0, time.monotonic() + float(seconds)
    while time.monotonic() < until:
        if time.monotonic() - sent >= EVERY_S:
            sent = time.monotonic()
            _broadcast(list(ports), json.dumps([token, node]).encode())
        for one in select.select(list(ports), [], [], EVERY_S / 2)[0]:
            found = _said(one.recv(2048))
            if isinstance(found, list) and len(found) == 2 and found[0] == token:
                heard.add((ports[one], str(found[1])))
        if len(heard) > MOST_HEARD:
            break
    print(json.dumps(sorted(heard)))


def _port(name: str) -> socket.socket:
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(KIND))
    port.bind((name, KIND))
    return port


def _broadcast(ports: list[socket.socket], text: bytes) -> None:
    """Send a text to all that are at these ports."""
    for one in ports:
        own = one.getsockname()[4]
        frame = b"\xff" * 6 + own + struct.pack("!HH", KIND, len(text)) + text
        with contextlib.suppress(OSError):  # its carrier is gone
            one.send(frame.ljust(SHORTEST, b"\0"))


def _said(frame: bytes) -> object:
    """Return what a frame says; None for one that is not JSON."""
    try:
        size = struct.unpack("!H", frame[14:16])[0]
        return json.loads(frame[16 : 16 + size])
    except (struct.error, ValueError, RecursionError):
        return None


# The speed of a link: a sender from memory and without copies, a receiver that keeps nothing.

WAIT_S = 10.0
"""Seconds for a connection, and for data on one."""

BUFFER = 1 << 22


def receive(address: str, port: str, streams: str) -> None:
    """Take the streams of a sender to their end; print bytes and seconds as JSON."""

    def take(connection: socket.socket) -> tuple[float, float, int]:
        """Return when the first bytes and the last ones came, and how many in all."""
        buffer, seen, first = bytearray(BUFFER), 0, math.inf
        while count := connection.recv_into(buffer, BUFFER, socket.MSG_TRUNC):
            first = min(first, time.monotonic())
            seen += count
        return first, time.monotonic(), seen

    count, taken = int(streams), []
    server = socket.create_server((address, int(port)), backlog=count)
    server.settimeout(WAIT_S)
    with server, ThreadPoolExecutor(count) as pool:
        for _ in range(count):
            connection, _peer = server.accept()
            connection.settimeout(WAIT_S)
            taken.append(pool.submit(take, connection))
    begun, ended, sizes = zip(*(one.result() for one in taken), strict=True)
    if not any(sizes):
        raise OSError("no bytes came")
    print(json.dumps({"bytes": sum(sizes), "seconds": max(ended) - min(begun)}))


CONNECT_S = 5.0
"""Seconds for a connection, and until the receiver must listen."""

BLOCK = 1 << 24
"""Bytes that are sent at once."""


def send(address: str, port: str, streams: str, seconds: str) -> None:
    """Send over several connections at once for some seconds."""
    memory = os.memfd_create("probe")
    os.ftruncate(memory, BLOCK)
    os.pwrite(memory, b"x" * BLOCK, 0)

    def give(connection: socket.socket) -> None:
        until = time.monotonic() + float(seconds)
        while time.monotonic() < until:
            os.sendfile(connection.fileno(), memory, 0, BLOCK)
        connection.close()

    connections = [_connected(address, int(port)) for _ in range(int(streams))]
    with ThreadPoolExecutor(len(connections)) as pool:
        list(pool.map(give, connections))


def _connected(address: str, port: int) -> socket.socket:
    until = time.monotonic() + CONNECT_S
    while True:
        try:
            connection = socket.create_connection((address, port), timeout=CONNECT_S)
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)
        else:
            connection.settimeout(None)
            return connection


# The time of a round trip: a TCP connection is made in one.


def round_trip(host: str, port: str, tries: str) -> None:
    """Print the median time in ms in which a connection is made."""
    taken = []
    for _ in range(int(tries)):
        began = time.perf_counter()
        socket.create_connection((host, int(port)), CONNECT_S).close()
        taken.append(time.perf_counter() - began)
    print(1e3 * statistics.median(taken))


# A talk with a program over its socket: standard input goes there, the answer to the output.

NOT_RUNNING = 3
"""Status when no program listens there."""


def ask(path: str, text: bytes, limit_s: float) -> bytes:
    """Send a text, and return the answer to its end.

    Args:
        limit_s: seconds for each step.

    Raises:
        OSError: no program listens there, or it does not answer in time.
    """
    found = b""
    with socket.socket(socket.AF_UNIX) as there:
        there.settimeout(limit_s)
        there.connect(path)
        there.sendall(text)
        while block := there.recv(65536):
            found += block
    return found


def talk(path: str, seconds: str) -> int:
    """Send all of standard input, and print the answer; returns the exit status.

    Args:
        seconds: for each step.
    """
    try:
        sys.stdout.buffer.write(ask(path, sys.stdin.buffer.read(), float(seconds)))
    except (FileNotFoundError, ConnectionRefusedError):
        return NOT_RUNNING
    return 0
