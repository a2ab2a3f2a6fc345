"""`logs -f`: every log at once, to its last word, and to the error that ended it."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from spark_cluster.cli import logs
from spark_cluster.cli.visible import LinePrinter
from spark_cluster.errors import Unreachable
from spark_cluster.node.output import LINE_LIMIT


@pytest.fixture
def follow():
    """`follow(spark1=[...], spark2=[...])`: what each log sends, or is raised at that point."""

    def run(**sent):
        def session(node):
            def wait(on_event):
                for what in sent[node]:
                    if isinstance(what, BaseException):
                        raise what
                    if isinstance(what, threading.Event):
                        what.wait()
                    else:
                        on_event({"event": "output", "text": what})

            return SimpleNamespace(submit=lambda *_, **__: SimpleNamespace(wait=wait))

        play = SimpleNamespace(connections=SimpleNamespace(session=session))
        logs._follow(play, {(node, "spark-vllm"): "docker" for node in sent}, 5)

    return run


def lost(node):
    return Unreachable("no sign of life for 15 s", where=node)


def test_a_node_that_is_lost_is_an_error(follow, capsys):
    with pytest.raises(Unreachable, match="spark1: no sign of life"):
        follow(spark1=["last words without a line end", lost("spark1")])
    assert capsys.readouterr().out == "spark1 vllm: last words without a line end\n"


def test_it_is_reported_at_once_although_the_other_log_goes_on(follow, capsys):
    never = threading.Event()
    try:
        with pytest.raises(Unreachable, match="spark1: no sign of life"):
            follow(spark2=["two\n", never], spark1=["one\n", lost("spark1")])
    finally:
        never.set()
    assert "spark1 vllm: one\n" in capsys.readouterr().out


def test_a_fault_of_ours_comes_through(follow):
    with pytest.raises(ZeroDivisionError):
        follow(spark1=[ZeroDivisionError()], spark2=[])


def test_logs_that_end(follow, capsys):
    follow(spark1=["one\ntw", "o\n\nthree"], spark2=["four\r\n", "five"])
    assert sorted(capsys.readouterr().out.splitlines()) == [
        "spark1 vllm: ",
        "spark1 vllm: one",
        "spark1 vllm: three",
        "spark1 vllm: two",
        "spark2 vllm: five",
        "spark2 vllm: four",
    ]


def test_a_line_end_that_comes_in_two_parts(capsys):
    printer = LinePrinter("")
    for part in ("one\r", "\ntwo\r", "three\r\r", "\n"):
        printer.add(part)
    printer.end()
    assert capsys.readouterr().out == "one\ntwo\nthree\n\n"


def test_a_progress_bar_is_shown_as_it_comes(capsys):
    printer = LinePrinter("n: ")
    for percent in range(100):
        printer.add(f"{percent} %\r")
    assert capsys.readouterr().out.splitlines() == [f"n: {percent} %" for percent in range(99)]
    printer.end()
    assert capsys.readouterr().out == "n: 99 %\n"


def test_a_line_without_end_is_shown_in_pieces(capsys):
    printer = LinePrinter("")
    for _ in range(10):
        printer.add("x" * (LINE_LIMIT // 3))
        assert len(printer.rest) <= LINE_LIMIT
    printer.end()
    assert capsys.readouterr().out.replace("\n", "") == "x" * (LINE_LIMIT // 3) * 10
