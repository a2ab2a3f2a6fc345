"""The display that is imported while nodes are at work: it misses nothing, in the right order."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading

import pytest
from terminal import Terminal
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


class Holding(Sink):
    """A sink that holds events back while a person is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.held = False

    @contextlib.contextmanager
    def quiet(self):
        self.held = True
        yield
        self.held = False


def test_a_question_comes_after_all_that_was_told_and_holds_back_the_rest():
    sink = Holding()
    display = late(lambda: sink)
    display.take(STARTED)
    display.take(Note("one"))
    with display.quiet():
        assert [getattr(event, "text", "") for event in sink.seen] == ["", "one"]
        assert sink.held
    assert not sink.held


def test_a_question_before_anything_was_told():
    with late(Sink).quiet():
        pass


QUESTION = """
from types import SimpleNamespace
from spark_cluster import Cluster, Options
from spark_cluster.cli.app import App
run = SimpleNamespace(options=Options(), change=True)
App(Cluster(), as_json={as_json}).watch(run)
consent = run.options.consent
print("answer", consent and consent("org/model is in /root: take a copy?"))
"""


@pytest.mark.parametrize(("typed", "answer"), [("y", "True"), ("n", "False"), ("", "False")])
def test_on_a_terminal_a_person_is_asked(tmp_path, typed, answer):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    terminal = Terminal(["-c", QUESTION.format(as_json=False)], tmp_path, environment)
    terminal.expect("org/model is in /root: take a copy? [y/N]: ")
    terminal.type(typed)
    terminal.expect(f"answer {answer}")
    terminal.close()


@pytest.mark.parametrize("as_json", [False, True])
def test_without_a_terminal_nobody_is_asked(tmp_path, as_json):
    done = subprocess.run(
        [sys.executable, "-c", QUESTION.format(as_json=as_json)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.stdout == "answer None\n"
