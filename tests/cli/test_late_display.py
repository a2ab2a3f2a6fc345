"""The display that is imported while nodes are at work: it misses nothing, in the right order."""

from __future__ import annotations

import threading

import pytest
from waiting import HANG_S

from spark_cluster.cli import late_display
from spark_cluster.cli.late_display import LateDisplay
from spark_cluster.runner.events import Connected, Note, RunFinished, RunStarted, StageStarted

STARTED = RunStarted("r1", "up", ("spark1",))
DONE = RunFinished(True, 1.0)


class Sink:
    def __init__(self, fails: bool = False) -> None:
        self.seen, self.closed, self.fails = [], False, fails

    def take(self, event) -> None:
        if self.fails:
            raise BrokenPipeError
        self.seen.append(event)

    def close(self) -> None:
        self.closed = True


def late(make, *, verbose=False, titled=True):
    return LateDisplay(make, verbose=verbose, titled=titled)


def test_what_was_told_before_comes_first():
    sink, go = Sink(), threading.Event()

    def make():
        go.wait(HANG_S)
        return sink

    display = late(make)
    display.take(STARTED)
    display.take(Note("one"))
    display.take(Note("two"))
    assert sink.seen == []
    go.set()
    display.settle()
    display.take(Note("three"))
    assert [getattr(event, "text", "") for event in sink.seen] == ["", "one", "two", "three"]
    display.close()
    assert sink.closed


@pytest.mark.parametrize(
    ("event", "options", "made"),
    [
        (STARTED, {}, True),
        (STARTED, {"titled": False}, False),
        (Connected("spark1", 0.1), {}, False),
        (Connected("spark1", 0.1), {"verbose": True}, True),
        (StageStarted("load"), {"titled": False}, True),
    ],
)
def test_it_is_made_only_when_there_is_something_to_show(event, options, made):
    sink = Sink()
    display = late(lambda: sink, **options)
    display.take(event)
    display.take(DONE)
    display.close()
    assert (sink.seen, sink.closed) == (([event, DONE], True) if made else ([], False))


def test_a_title_does_not_wait_for_work(monkeypatch):
    monkeypatch.setattr(late_display, "WITHIN_S", 0.0)
    made = threading.Event()
    display = late(lambda: made.set() or Sink())
    display.take(STARTED)
    assert made.wait(HANG_S)


def test_an_output_that_is_closed_is_reported_to_who_waits():
    display = late(lambda: Sink(fails=True))
    display.take(Note("one"))
    with pytest.raises(BrokenPipeError):
        display.settle()
    display.close()
