"""The link of the engine benchmark: what it delays and what it counts."""

import struct

import pytest

from benchmarks.engine.relay import DelayLine, Segment, Traffic, TurnCounter, parse

LAPTOP = ("10.0.0.9", 40000)
NODE = ("10.0.0.1", 22)
SYN, ACK, PSH = 0x02, 0x10, 0x08


def frame(source, target, sequence, flags, payload=b"", *, options=b"", padding=b""):
    address = lambda text: bytes(map(int, text.split(".")))  # noqa: E731
    offset = (20 + len(options)) // 4 << 4
    tcp = struct.pack(
        ">HHIIBBHHH", source[1], target[1], sequence % 2**32, 0, offset, flags, 0, 0, 0
    )
    length = 20 + len(tcp) + len(options) + len(payload)
    ip = struct.pack(">BBHHHBBH", 0x45, 0, length, 0, 0, 64, 6, 0)
    ip += address(source[0]) + address(target[0])
    return b"\0" * 12 + b"\x08\x00" + ip + tcp + options + payload + padding


class Talk:
    """A connection as the counter sees it."""

    def __init__(self, start=1000, port=40000, node="10.0.0.1"):
        self.counter = TurnCounter()
        self.laptop, self.node = ("10.0.0.9", port), (node, 22)
        self.up, self.down = start, start + 7
        self.counter.sent(Segment(self.laptop, self.node, self.up % 2**32, SYN, 0))
        self.up += 1

    def say(self, size, *, again=False):
        sequence = self.up - size if again else self.up
        self.counter.sent(Segment(self.laptop, self.node, sequence % 2**32, ACK | PSH, size))
        self.up += 0 if again else size
        return self

    def hear(self, size, *, again=False):
        sequence = self.down - size if again else self.down
        self.counter.received(Segment(self.node, self.laptop, sequence % 2**32, ACK | PSH, size))
        self.down += 0 if again else size
        return self

    def total(self):
        return sum(self.counter.take().values(), Traffic())


def test_frames_wait_for_the_delay_and_keep_their_order():
    line = DelayLine(0.0025)
    line.put(10.0, b"a")
    line.put(10.001, b"b")
    assert line.due(10.002) == []
    assert line.wait(10.002) == pytest.approx(0.0005)
    assert line.due(10.0025) == [b"a"]
    assert line.due(10.1) == [b"b"]
    assert line.wait(10.1) is None


def test_a_segment_is_read_with_its_options_and_without_the_padding():
    seen = parse(frame(LAPTOP, NODE, 5, ACK, b"hello", options=b"\1" * 12, padding=b"\0" * 9))
    assert seen == Segment(LAPTOP, NODE, 5, ACK, 5)


@pytest.mark.parametrize(
    "other",
    [b"", b"\0" * 60, b"\0" * 12 + b"\x08\x06" + b"\0" * 46, frame(LAPTOP, NODE, 1, SYN)[:50]],
    ids=["empty", "no type", "arp", "cut"],
)
def test_other_frames_are_no_segments(other):
    assert parse(other) is None


def test_the_first_words_are_not_a_turn():
    assert Talk().say(10).say(10).total() == Traffic(1, 0, 20, 0)


def test_each_answer_that_is_answered_is_a_turn():
    talk = Talk().say(10).hear(20).say(5).say(5).hear(7).hear(7).say(1)
    assert talk.total() == Traffic(connections=1, turns=2, bytes_up=21, bytes_down=34)


def test_segments_sent_again_do_not_count():
    talk = Talk().say(10).hear(20).say(10, again=True).say(5).hear(20, again=True).say(5)
    assert talk.total() == Traffic(connections=1, turns=1, bytes_up=20, bytes_down=20)


def test_sequence_numbers_wrap_around():
    talk = Talk(start=2**32 - 12).say(10).say(10).hear(30).say(10)
    assert talk.total() == Traffic(connections=1, turns=1, bytes_up=30, bytes_down=30)


def test_a_port_used_again_is_a_new_connection():
    talk = Talk().say(10).hear(10)
    talk.counter.sent(Segment(talk.laptop, talk.node, 777, SYN, 0))
    talk.counter.sent(Segment(talk.laptop, talk.node, 778, ACK, 10))
    assert talk.total() == Traffic(connections=2, turns=0, bytes_up=20, bytes_down=10)


def test_nodes_are_counted_separately_and_taking_starts_again():
    talk = Talk().say(3).hear(4)
    talk.counter.sent(Segment(LAPTOP, ("10.0.0.2", 22), 1, SYN, 0))
    assert talk.counter.take() == {"10.0.0.1": Traffic(1, 0, 3, 4), "10.0.0.2": Traffic(1, 0, 0, 0)}
    talk.say(2)
    assert talk.counter.take() == {"10.0.0.1": Traffic(0, 1, 2, 0), "10.0.0.2": Traffic()}
