"""The display of a run: it begins with the first thing to show, and misses nothing."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
from factories import put
from terminal import Terminal, on_screen
from waiting import until

from spark_cluster.cli.display import Display
from spark_cluster.cli.terminal import Console
from spark_cluster.runner.events import (
    Changing,
    Connected,
    Note,
    Progress,
    RunFinished,
    RunStarted,
    StageStarted,
)

STARTED = RunStarted("r1", "up", ("spark1",))
DONE = RunFinished(True, 1.0)


@pytest.mark.parametrize(
    ("event", "options", "shown"),
    [
        (STARTED, {}, "up  run r1"),
        (STARTED, {"titled": False}, ""),
        (Connected("spark1", 0.1), {}, ""),
        (Connected("spark1", 0.1), {"verbose": True}, "spark1    connected  0.10 s"),
        (StageStarted("load"), {"titled": False}, "▸ load"),
    ],
)
def test_it_is_begun_only_when_there_is_something_to_show(event, options, shown):
    made = []
    display = Display(
        lambda: made.append(Console(file=io.StringIO(), width=100)) or made[0], **options
    )
    display.take(event)
    display.take(DONE)
    display.close()
    assert [console.file.getvalue().strip() for console in made] == [shown] * bool(shown)


def test_a_title_does_not_wait_for_work():
    out = io.StringIO()
    Display(lambda: Console(file=out)).take(STARTED)
    assert "run r1" in out.getvalue()


def test_an_output_that_is_closed_is_reported_to_who_tells():
    class Closed(io.StringIO):
        def write(self, _text):
            raise BrokenPipeError

    display = Display(lambda: Console(file=Closed()))
    with pytest.raises(BrokenPipeError):
        display.take(Note("one"))
    display.close()


@pytest.mark.parametrize("before", [(STARTED, Note("one")), ()])
def test_a_question_comes_after_all_that_was_told_and_holds_back_the_rest(before):
    out = io.StringIO()
    display = Display(lambda: Console(file=out, width=100))
    for event in before:
        display.take(event)
    with display.quiet():
        assert ("one" in out.getvalue()) is bool(before)
        display.take(Note("two"))
        assert "two" not in out.getvalue()
    assert "two" in out.getvalue()


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


def test_what_a_run_has_told_of_a_node_is_not_repeated_below(tmp_path, closed_port):
    nodes = "nodes: {spark1: {address: 127.0.0.1, roles: [head]}}"
    put(tmp_path / "inventory.yaml", f"{nodes}\nssh: {{port: {closed_port}}}\n")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    words = ["-m", "spark_cluster", "down"]
    terminal = Terminal(words, tmp_path, environment)
    terminal.expect("UNREACHABLE")
    terminal.expect("error: the run failed; the reason stands above")
    assert terminal.end() == 3
    assert terminal.shown.count("refused the connection") == 1
    terminal.close()
    piped = subprocess.run(
        [sys.executable, *words],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "error: spark1: 127.0.0.1" in piped.stderr, "standard output may be a file"


PASSWORD = """
from types import SimpleNamespace
from spark_cluster import Cluster, Options
from spark_cluster.cli.app import App
from spark_cluster.runner.events import RunFinished, RunStarted
run = SimpleNamespace(options=Options(), change=True)
cluster = Cluster()
sink = App(cluster).watch(run)
sink.take(RunStarted("r1", "up", ("spark1",)))
print("answer", cluster.prompts.ask("the sudo password of spark1"))
sink.take(RunFinished(True, 1.0))
sink.close()
"""


def test_a_password_is_asked_for_below_what_was_told(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    terminal = Terminal(["-c", PASSWORD], tmp_path, environment)
    before = terminal.expect("the sudo password of spark1: ")
    terminal.type("x")
    terminal.expect("answer x")
    terminal.close()
    assert "run r1" in before


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


def test_progress_and_its_time_are_seen_before_a_long_name_is_cut():
    display = Display(lambda: Console(file=io.StringIO(), width=80))
    display.take(STARTED)
    display.take(Progress("spark1", "Command:measure " + "run-" * 20, "cell 1 of 2"))
    assert "spark1  0 s  cell 1 of 2" in display._draw().plain


def test_what_is_alive_leaves_nothing_behind():
    with on_screen(40) as screen:
        display = Display(Console)
        for event in (STARTED, StageStarted("load"), Changing("spark1", "Container:vllm")):
            display.take(event)
        until(lambda: "Container:vllm" in screen.written)
        for number in range(3):
            display.take(Progress("spark1", "Container:vllm", f"step {number}"))
            display._live.refresh()
        display.take(Note("the fabric address is none of this node's own", node="spark1"))
        display.take(DONE)
        display.close()
    assert screen.close().rstrip("\n").split("\n") == [
        "up  run r1",
        "▸ load",
        "  spark1  the fabric address is none of",
        "          this node's own",
    ]
