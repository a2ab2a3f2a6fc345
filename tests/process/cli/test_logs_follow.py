"""`logs -f`: every log at once, to its last word, and to the error that ended it."""

import io
from collections.abc import Callable
from contextlib import redirect_stdout

import pytest
from factories import put
from piped_cluster import Make

from spark_cluster.cli import doctor
from spark_cluster.cli.console import LinePrinter
from spark_cluster.errors import Unreachable
from spark_cluster.node.output import LINE_LIMIT

GOES_ON = "; sleep 600"
"""The end of a command whose log goes on."""


@pytest.fixture
def follow(piped_cluster: Make) -> Callable[..., None]:
    """`follow(spark1=script, spark2=script)`: the shell's commands that write each log.

    With `lost` that node loses its power when these words of it have come.
    """

    def run(lost: tuple[str, bytes] | None = None, **scripts: str) -> None:
        cluster = piped_cluster(*scripts)
        for name, script in scripts.items():
            put(cluster.nodes[name].root / "usr/local/bin/docker", f"#!/bin/sh\n{script}\n", 0o755)
        if lost is not None:
            node, words = cluster.nodes[lost[0]], lost[1]
            node.channels[-1].on_data = lambda data: words in data and node.lose()
        doctor._follow(cluster.play, {(node, "spark-vllm"): "docker" for node in scripts}, 5)

    return run


def test_a_node_that_is_lost_is_an_error(follow, capsys):
    with pytest.raises(Unreachable, match="spark1: the connection was lost"):
        follow(("spark1", b"words"), spark1=f"printf 'last words without a line end'{GOES_ON}")
    assert capsys.readouterr().out == "spark1 vllm: last words without a line end\n"


def test_it_is_reported_at_once_although_the_other_log_goes_on(follow, capsys):
    with pytest.raises(Unreachable, match="spark1: the connection was lost"):
        follow(("spark1", b"one"), spark1=f"echo one{GOES_ON}", spark2=f"echo two{GOES_ON}")
    assert "spark1 vllm: one\n" in capsys.readouterr().out


def test_a_fault_of_ours_comes_through(follow):
    class Broken(io.StringIO):
        def write(self, _text: str) -> int:
            raise ZeroDivisionError

    with redirect_stdout(Broken()), pytest.raises(ZeroDivisionError):
        follow(spark1="echo one", spark2="true")


def test_logs_that_end(follow, capsys):
    follow(spark1="printf 'one\\ntwo\\n\\nthree'", spark2="printf 'four\\r\\nfive'")
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
