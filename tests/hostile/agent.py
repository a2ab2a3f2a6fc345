"""A hostile agent: what a node sends in place of the messages of a real agent.

`recorded` keeps the conversation of a session with a real agent, `Played` is a channel on which it
comes again, as it was or changed, and then goes on as `ending` says. `faults` draws the changes.
"""

import json
import struct
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st
from pipe_channel import PipeChannel

from spark_cluster.agent import frames
from spark_cluster.runner import wire

ALIVE = frames.pack({"event": "alive"})

PAUSE_S = 0.01
"""Seconds between two signs of life, and between two bytes of a frame that drips."""

DEEP = b"[" * 100_000 + b"]" * 100_000
"""JSON that is nested deeper than a parser can follow."""

JUNK: tuple[Any, ...] = (
    None, True, 0, -1, 1 << 70, 1e308, float("inf"), float("nan"),
    "", "x", "\ud800", "\x1b[2J", "9" * 5000, "../../etc", "Command:none",
    [], [1], [[]], [{}], [["x", 1]], {}, {"a": 1}, {"status": "x"},
)  # fmt: skip
"""Values that come in the place of any other."""

EVENTS = (
    "alive", "ask", "changing", "done", "need", "need_code", "no_room", "note", "output",
    "progress", "prove", "ready", "result", "too_old", "unheard-of",
)  # fmt: skip

ENDINGS = ("end", "silence", "alive", "chatter", "drip")


@dataclass(frozen=True)
class Frame:
    """A message of an agent.

    Attributes:
        data: the frame, its length included.
        after: how many times the laptop had sent something before it came.
    """

    data: bytes
    after: int

    @property
    def message(self) -> dict[str, Any]:
        """The message in it."""
        return json.loads(self.data[4:])


class Recorder(PipeChannel):
    """A real agent, all of whose messages are kept."""

    def __init__(self) -> None:
        super().__init__(wire.argv("test"))
        self._received: list[tuple[int, bytes]] = []
        self._sent = 0

    def send(self, data: bytes) -> None:
        self._sent += 1
        super().send(data)

    def receive(self, timeout: float) -> bytes:
        data = super().receive(timeout)
        self._received.append((self._sent, data))
        return data

    def frames(self) -> list[Frame]:
        """Return what the agent has sent, but for its signs of life."""
        found, rest = [], b""
        for sent, data in self._received:
            rest += data
            while len(rest) >= 4 and len(rest) >= 4 + (size := struct.unpack(">I", rest[:4])[0]):
                found.append(Frame(rest[: 4 + size], sent))
                rest = rest[4 + size :]
        return [frame for frame in found if frame.data != ALIVE]


class Played:
    """A channel on which frames come as they were recorded, each after what it answers.

    Args:
        ending: what comes after them: the `end`, `silence`, signs of life (`alive`) or lines of
            progress (`chatter`) without end, or a frame that comes byte by byte (`drip`).
        piece: bytes that come at once.
    """

    def __init__(self, frames: Sequence[Frame], ending: str = "end", piece: int = 65536) -> None:
        self._frames = list(frames)
        self._ending = ending
        self._piece = piece
        self._rest = b""
        self._sent = 0
        self._changed = threading.Condition()
        self._closed = False

    def send(self, data: bytes) -> None:
        with self._changed:
            if self._closed:
                raise OSError("closed")
            self._sent += 1
            self._changed.notify_all()

    def receive(self, timeout: float) -> bytes:
        with self._changed:
            if not self._rest and self._frames and not self._closed:
                after = self._frames[0].after
                # What is changed may be answered with less: then it comes all the same.
                self._changed.wait_for(lambda: self._sent >= after or self._closed, 2 * PAUSE_S)
                self._rest = self._frames.pop(0).data
            if self._closed:
                return b""
            data, self._rest = self._rest[: self._piece], self._rest[self._piece :]
            return data or self._at_the_end(timeout)

    def _at_the_end(self, timeout: float) -> bytes:
        if self._ending == "end":
            return b""
        self._changed.wait_for(lambda: self._closed, min(timeout, PAUSE_S))
        if self._closed:
            return b""
        if self._ending == "drip":
            self._ending = "drips"
            return struct.pack(">I", frames.LIMIT)
        if self._ending == "silence":
            raise TimeoutError
        chatter = {"event": "progress", "req": 1, "id": "File:/a", "text": "on its way"}
        return {"alive": ALIVE, "drips": b"{", "chatter": frames.pack(chatter)}[self._ending]

    def stderr(self) -> str:
        return ""

    def status(self) -> int | None:
        return None

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def raw(data: bytes, after: int = 1) -> Frame:
    """Return a frame with any content."""
    return Frame(struct.pack(">I", len(data)) + data, after)


def said(*messages: Any) -> list[Frame]:
    """Return messages as frames that come after the first request."""
    return [raw(json.dumps(message).encode()) for message in messages]


# -- changes of a conversation ---------------------------------------------------------------------


def faults(original: Sequence[Frame]) -> st.SearchStrategy[list[Frame]]:
    """Draw a conversation that differs in one to three places."""

    @st.composite
    def changed(draw: st.DrawFn) -> list[Frame]:
        found = list(original)
        for _ in range(draw(st.integers(1, 3))):
            if found:
                change = draw(st.sampled_from(_CHANGES))
                change(draw, found, draw(st.integers(0, len(found) - 1)))
        return found

    return changed()


Change = Callable[[st.DrawFn, list[Frame], int], None]


def _value(draw: st.DrawFn, found: list[Frame], at: int) -> None:
    """Put another value in the place of one, or remove it, anywhere in a message."""
    message = _message(found[at])
    places = list(_places(message))
    if not places:
        return
    holder, key = draw(st.sampled_from(places))
    if draw(st.booleans()):
        holder[key] = draw(st.sampled_from(JUNK))
    else:
        del holder[key]
    found[at] = _again(found[at], message)


def _event(draw: st.DrawFn, found: list[Frame], at: int) -> None:
    message = _message(found[at])
    message["event"] = draw(st.sampled_from(EVENTS))
    found[at] = _again(found[at], message)


def _bytes(draw: st.DrawFn, found: list[Frame], at: int) -> None:
    data = bytearray(found[at].data)
    if not data:  # nothing is left of it
        return
    for place in draw(st.lists(st.integers(0, len(data) - 1), min_size=1, max_size=4)):
        data[place] ^= draw(st.integers(1, 255))
    found[at] = Frame(bytes(data), found[at].after)


def _cut(draw: st.DrawFn, found: list[Frame], at: int) -> None:
    size = draw(st.integers(0, len(found[at].data)))
    found[at:] = [Frame(found[at].data[:size], found[at].after)]


def _twice(_draw: st.DrawFn, found: list[Frame], at: int) -> None:
    found.insert(at, found[at])


def _without(_draw: st.DrawFn, found: list[Frame], at: int) -> None:
    del found[at]


def _nested(draw: st.DrawFn, found: list[Frame], at: int) -> None:
    head = draw(st.sampled_from([b"", b'{"event":"done","req":1,"status":', b'{"event":']))
    found[at] = raw(head + DEEP + b"}" * bool(head), found[at].after)


def _other(draw: st.DrawFn, found: list[Frame], at: int) -> None:
    text = st.sampled_from([b"[]", b"null", b"1", b'""', b"", b"{}", b"{", b"\xff\xfe", b"NaN"])
    found[at] = raw(draw(text), found[at].after)


_CHANGES: tuple[Change, ...] = (
    *(_value,) * 8, _event, _bytes, _cut, _twice, _without, _nested, _other,
)  # fmt: skip


def _message(frame: Frame) -> dict[str, Any]:
    """Return the message of a frame; one of nothing where a change has left none."""
    try:
        found = frame.message
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _again(frame: Frame, message: dict[str, Any]) -> Frame:
    return raw(json.dumps(message).encode(), frame.after)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place of a message: what holds it, and its key or index there."""
    if isinstance(value, (dict, list)):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from _places(value[key])


def ended(session: Any) -> bool:
    """Close a session; return whether its reader has ended."""
    session.close()
    reader = session._reader
    if reader is not None:
        reader.join(20)
    return reader is None or not reader.is_alive()


# -- what the tools of a node print ----------------------------------------------------------------

TEXTS = (
    "", "\0", "[]", "{}", "null", "[1]", "[{}]", '{"a":', "9" * 5000, "\u2028", "-1", "1e999",
    "nan", "a=b\n" * 50, "[" * 2000, '{"a":' * 2000, "\x1b[2J", "::::", "0x", "%s", ",,,,,,",
    "[N/A]", " | ", "580.126.09", "1.2.3.4/99", "²", "١٢", "\n", "\t", "spark1 spark2",
)  # fmt: skip
"""Texts that come in the place of others, or in the middle of one."""


def texts(original: str) -> st.SearchStrategy[str]:
    """Draw another text: one with a part of it replaced, cut off, or nothing of it; of JSON also
    one with another value somewhere in it."""
    junk = st.sampled_from(TEXTS)
    at = st.integers(0, len(original))
    changes = [
        junk,
        at.map(lambda end: original[:end]),
        st.builds(lambda i, one: original[:i] + one + original[i + 1 :], at, junk),
        st.builds(lambda i, one: original.replace(original[i : i + 1] or "\n", one, 99), at, junk),
    ]
    return st.one_of(*changes, *[_other_json(original)] * (3 if _has_parts(original) else 0))


def _has_parts(text: str) -> bool:
    """Return whether a text is JSON in which a value can be replaced."""
    try:
        return any(_places(json.loads(text)))
    except (ValueError, RecursionError):
        return False


@st.composite
def _other_json(draw: st.DrawFn, original: str) -> str:
    found = json.loads(original)
    holder, key = draw(st.sampled_from(list(_places(found))))
    holder[key] = draw(st.sampled_from(JUNK))
    return json.dumps(found)


def answers(original: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Draw the answer to a `gather` of which one to four texts are others.

    The message is one that a session lets through: this is about what is in the texts.
    """

    @st.composite
    def changed(draw: st.DrawFn) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(json.dumps(original))
        places = [place for place in _places(found) if isinstance(place[0][place[1]], str)]
        for holder, key in draw(st.lists(st.sampled_from(places), min_size=1, max_size=4)):
            holder[key] = draw(texts(holder[key]))
        return found

    return changed()
