"""An output of a unit on the disk: bounded, its end kept, its lines told while it grows."""

import errno
import os

import pytest

from spark_cluster.node import worker
from spark_cluster.node.worker import OutputFile, Tail, text_of

ROOM = 10_000


@pytest.fixture
def path(tmp_path):
    return tmp_path / "out"


def on_disk(path):
    return sum(file.stat().st_size for file in path.parent.iterdir())


@pytest.mark.parametrize("look_every", [1, 100])
def test_it_is_bounded_and_its_lines_are_told(path, look_every):
    """100 lines are more than half of the room: who looks so seldom meets a turn each time."""
    out, told = OutputFile(path, ROOM), []
    tail = Tail(path, told.append)
    for number in range(2000):
        out.add(b"%060d\n" % number)
        assert on_disk(path) <= ROOM
        if number % look_every == 0:
            tail.read()
    tail.read(last=True)
    out.close()
    assert [int(line) for line in told] == list(range(2000))


def test_a_late_follower_gets_what_there_is(path):
    out, told = OutputFile(path, ROOM), []
    for number in range(2000):
        out.add(b"%060d\n" % number)
    Tail(path, told.append).read(last=True)
    assert int(told[-1]) == 1999
    assert len(told) >= ROOM // 2 // 61


@pytest.mark.parametrize("size", [1, 4999, 5000, 5001, 9999, 10_000, 10_001, 123_456])
def test_the_end_is_always_there(path, size):
    data = bytes(65 + number % 26 for number in range(size))
    out = OutputFile(path, ROOM)
    out.add(data)
    out.close()
    kept = text_of(path).encode()
    assert data.endswith(kept)
    assert len(kept) >= min(size, ROOM // 2)


def test_a_result_has_no_more_than_its_limit(path, monkeypatch):
    monkeypatch.setattr(worker, "RESULT_LIMIT", 7000)
    out = OutputFile(path, ROOM)
    out.add(b"x" * 8000 + b"end")
    assert text_of(path) == "x" * 6997 + "end"


def test_what_grows_faster_than_it_is_read_is_not_read_for_ever(path, monkeypatch):
    monkeypatch.setattr(worker, "BLOCK", 100)
    monkeypatch.setattr(worker, "TOLD_AT_ONCE", 1000)
    out = OutputFile(path)
    out.add(b"x\n")
    tail = Tail(path, lambda _: out.add(b"x\n"))
    assert tail.read()


def test_a_full_disk_keeps_the_end_for_later(path, monkeypatch):
    out = OutputFile(path, ROOM)
    out.add(b"begin\n")

    def full(*_args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(worker.os, "write", full)
        patched.setattr(worker, "UNWRITTEN_LIMIT", 4)
        out.add(b"lost end\n")
    out.close()
    assert text_of(path) == "begin\nend\n"


def test_a_full_disk_in_the_moment_of_a_turn(path, monkeypatch):
    out = OutputFile(path, ROOM)
    out.add(b"x" * (ROOM // 2))

    def full(*_args):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(worker.os, "open", full)
        out.add(b"one ")
    out.add(b"two")
    out.close()
    assert text_of(path).endswith("xone two")
