"""Which nodes are heard at which port: frames of raw Ethernet, which no address is needed for."""

from __future__ import annotations

import contextlib
import json
import select
import socket
import struct
import time

KIND = 0x88B5
"""EtherType for experiments within one network (IEEE 802)."""

EVERY_S = 0.1
"""Seconds between two frames."""

SHORTEST = 60
"""Bytes of an Ethernet frame at least, without its checksum."""


def main(token: str, node: str, seconds: str, *names: str) -> None:
    """Send this node's name over interfaces for some seconds; print [interface, node heard there].

    Args:
        token: of this question; frames with another one are not ours.
    """
    ports = {_opened(name): name for name in names}
    heard: set[tuple[str, str]] = set()
    sent, until = 0.0, time.monotonic() + float(seconds)
    while time.monotonic() < until:
        if time.monotonic() - sent >= EVERY_S:
            sent = time.monotonic()
            _send(list(ports), json.dumps([token, node]).encode())
        for one in select.select(list(ports), [], [], EVERY_S / 2)[0]:
            found = _read(one.recv(2048))
            if isinstance(found, list) and len(found) == 2 and found[0] == token:
                heard.add((ports[one], str(found[1])))
    print(json.dumps(sorted(heard)))


def _opened(name: str) -> socket.socket:
    port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(KIND))
    port.bind((name, KIND))
    return port


def _send(ports: list[socket.socket], text: bytes) -> None:
    """Send a text to all that are at these ports."""
    for one in ports:
        own = one.getsockname()[4]
        frame = b"\xff" * 6 + own + struct.pack("!HH", KIND, len(text)) + text
        with contextlib.suppress(OSError):  # its carrier is gone
            one.send(frame.ljust(SHORTEST, b"\0"))


def _read(frame: bytes) -> object:
    """Return what a frame says; None for one that is not JSON."""
    try:
        size = struct.unpack("!H", frame[14:16])[0]
        return json.loads(frame[16 : 16 + size])
    except (struct.error, ValueError, RecursionError):
        return None
