"""A link with a round-trip time, between two TAP devices, that counts what TCP does over it.

Frames are taken from one device and given to the other half a round trip later, so that TCP runs
end to end between the tool and the node: a delayed acknowledgement, or a small packet held back
by Nagle's algorithm, costs here what it costs on a real link. Bandwidth is not limited.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections import deque
from dataclasses import asdict, dataclass
from typing import NamedTuple

_MAX_FRAME = 65536
_BURST = 64  # frames read from one device before the other gets its turn
_SYN, _ACK = 0x02, 0x10


class DelayLine:
    """Frames in order, each due `delay` seconds after it came in."""

    def __init__(self, delay: float) -> None:
        self._delay = delay
        self._waiting: deque[tuple[float, bytes]] = deque()

    def put(self, now: float, frame: bytes) -> None:
        """Take a frame in."""
        self._waiting.append((now + self._delay, frame))

    def due(self, now: float) -> list[bytes]:
        """Take out all frames that have waited long enough."""
        frames = []
        while self._waiting and self._waiting[0][0] <= now:
            frames.append(self._waiting.popleft()[1])
        return frames

    def wait(self, now: float) -> float | None:
        """Seconds until the next frame is due; None when there is none."""
        return max(0.0, self._waiting[0][0] - now) if self._waiting else None


class Segment(NamedTuple):
    """The parts of a TCP/IPv4 segment that the counter looks at."""

    source: tuple[str, int]
    target: tuple[str, int]
    sequence: int
    flags: int
    payload: int


def parse(frame: bytes) -> Segment | None:
    """The TCP segment in an Ethernet frame; None when it carries something else."""
    if len(frame) < 54 or frame[12:14] != b"\x08\x00" or frame[23] != 6:
        return None
    tcp = 14 + (frame[14] & 0x0F) * 4
    if len(frame) < tcp + 20:
        return None
    total = int.from_bytes(frame[16:18], "big")
    header = tcp - 14 + (frame[tcp + 12] >> 4) * 4
    return Segment(
        source=(_dotted(frame[26:30]), int.from_bytes(frame[tcp : tcp + 2], "big")),
        target=(_dotted(frame[30:34]), int.from_bytes(frame[tcp + 2 : tcp + 4], "big")),
        sequence=int.from_bytes(frame[tcp + 4 : tcp + 8], "big"),
        flags=frame[tcp + 13],
        payload=total - header,
    )


def _dotted(address: bytes) -> str:
    return ".".join(map(str, address))


@dataclass
class Traffic:
    """The traffic to and from one node, or all of them together."""

    connections: int = 0
    turns: int = 0
    bytes_up: int = 0
    bytes_down: int = 0

    def __add__(self, other: Traffic) -> Traffic:
        mine, theirs = asdict(self), asdict(other)
        return Traffic(**{name: mine[name] + theirs[name] for name in mine})


@dataclass
class _Connection:
    opened: int  # the sequence number of its SYN, to know one sent again
    up: int | None = None  # the sequence number after the last byte seen, each way
    down: int | None = None
    answered: bool = False  # the last data seen came from the node


class TurnCounter:
    """Counts connections and turns as the laptop sees them.

    A turn is data sent by the laptop after data received from the node: the times that it may
    have waited for an answer before it went on. Segments without data, and segments sent again,
    do not count.

    Args:
        port: the nodes' port.
    """

    def __init__(self, port: int = 22) -> None:
        self._port = port
        self._connections: dict[tuple[str, int, str], _Connection] = {}
        self._nodes: dict[str, Traffic] = {}

    def sent(self, segment: Segment) -> None:
        """A segment left the laptop."""
        if segment.target[1] != self._port:
            return
        node = segment.target[0]
        key = (segment.source[0], segment.source[1], node)
        traffic = self._nodes.setdefault(node, Traffic())
        known = self._connections.get(key)
        if segment.flags & (_SYN | _ACK) == _SYN:
            if known is None or known.opened != segment.sequence:
                self._connections[key] = _Connection(segment.sequence)
                traffic.connections += 1
        elif known is not None and (fresh := _fresh(segment, known.up)):
            known.up = (segment.sequence + segment.payload) % 2**32
            traffic.bytes_up += fresh
            traffic.turns += known.answered
            known.answered = False

    def received(self, segment: Segment) -> None:
        """A segment reached the laptop."""
        if segment.source[1] != self._port:
            return
        node = segment.source[0]
        known = self._connections.get((segment.target[0], segment.target[1], node))
        if known is not None and (fresh := _fresh(segment, known.down)):
            known.down = (segment.sequence + segment.payload) % 2**32
            self._nodes[node].bytes_down += fresh
            known.answered = True

    def take(self) -> dict[str, Traffic]:
        """The traffic by node address since the last call; connections stay known."""
        taken, self._nodes = self._nodes, {node: Traffic() for node in self._nodes}
        return taken


def _fresh(segment: Segment, expected: int | None) -> int:
    """Return how many bytes of the segment were not seen before (sequence numbers wrap around)."""
    if expected is None:
        return segment.payload
    ahead = (segment.sequence + segment.payload - expected) % 2**32
    return min(ahead, segment.payload) if ahead < 2**31 else 0


class Relay:
    """Moves frames between the laptop's device and the nodes' until it is closed.

    Args:
        laptop: descriptor of the TAP device on the laptop's side.
        nodes: descriptor of the one on the nodes' side.
        rtt: round-trip time in seconds.
    """

    def __init__(self, laptop: int, nodes: int, rtt: float) -> None:
        self._laptop, self._nodes = laptop, nodes
        self._up, self._down = DelayLine(rtt / 2), DelayLine(rtt / 2)
        self._counter = TurnCounter()
        self._lock = threading.Lock()
        self._wake, self._stop = os.pipe()
        for descriptor in (laptop, nodes):
            os.set_blocking(descriptor, False)
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)
        self._thread.start()

    def take(self) -> dict[str, Traffic]:
        """The traffic by node address since the last call."""
        with self._lock:
            return self._counter.take()

    def close(self) -> None:
        """Stop moving frames; the devices stay open."""
        os.close(self._stop)
        self._thread.join()
        os.close(self._wake)

    def _run(self) -> None:
        with contextlib.suppress(OSError):  # so that busy cores do not lengthen the round trip
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        while True:
            now = time.monotonic()
            waits = [w for w in (self._up.wait(now), self._down.wait(now)) if w is not None]
            devices = [self._laptop, self._nodes, self._wake]
            ready, _, _ = select.select(devices, [], [], min(waits, default=None))
            if self._wake in ready:
                return
            with self._lock:
                self._move(ready)

    def _move(self, ready: list[int]) -> None:
        if self._laptop in ready:
            for frame in _frames(self._laptop):
                self._up.put(time.monotonic(), frame)
                if segment := parse(frame):
                    self._counter.sent(segment)
        if self._nodes in ready:
            for frame in _frames(self._nodes):
                self._down.put(time.monotonic(), frame)
        now = time.monotonic()
        for frame in self._up.due(now):
            _give(self._nodes, frame)
        for frame in self._down.due(now):
            if segment := parse(frame):
                self._counter.received(segment)
            _give(self._laptop, frame)


def _frames(device: int) -> list[bytes]:
    frames: list[bytes] = []
    with contextlib.suppress(BlockingIOError):
        while len(frames) < _BURST:
            frames.append(os.read(device, _MAX_FRAME))
    return frames


def _give(device: int, frame: bytes) -> None:
    with contextlib.suppress(OSError):  # a full or vanished device loses a frame, as a link does
        os.write(device, frame)
