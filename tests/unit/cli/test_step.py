"""--step: who is asked, what the answers mean, and when there is nobody to ask."""

import io
import threading

import pytest

from spark_cluster.cli.app import Stepper
from spark_cluster.cli.display import Display
from spark_cluster.cli.terminal import Console
from spark_cluster.runner.events import Note

CHANGE = {
    "id": "File:/etc/[hosts]",
    "changes": {"mode": ["0600", "0644"]},
    "diff": "--- a\n+++ b\n+new\n",
}


def stepper(*lines):
    out = io.StringIO()
    display = Display(lambda: Console(file=out, width=100))
    left = list(lines)

    def read(_prompt):
        if not left:
            raise EOFError
        line = left.pop(0)
        return line() if callable(line) else line

    return Stepper(display, read), display, out


@pytest.mark.parametrize(
    ("said", "meant"), [("y", "yes"), ("Yes ", "yes"), ("n", "no"), ("a", "all"), ("s", "stop")]
)
def test_answers(said, meant):
    asking, _, out = stepper("", "what?", said)
    assert asking.ask("spark1", CHANGE) == meant
    text = out.getvalue()
    assert text.count("change it?") == 3
    assert "spark1  File:/etc/[hosts]  mode 0600 → 0644" in text
    assert "+new" in text


def test_all_and_stop_hold_for_all_that_follows():
    for said, meant in (("a", "all"), ("s", "stop")):
        asking, _, out = stepper(said)
        assert [asking.ask(node, CHANGE) for node in ("spark1", "spark2")] == [meant, meant]
        assert out.getvalue().count("change it?") == 1


def test_no_holds_when_the_same_comes_up_again_even_after_all():
    other = {**CHANGE, "id": "File:/etc/other"}
    asking, _, out = stepper("n", "a")
    asked = [("spark1", CHANGE), ("spark1", CHANGE), ("spark2", CHANGE)]
    asked += [("spark1", CHANGE), ("spark1", other)]
    said = [asking.ask(node, change) for node, change in asked]
    assert said == ["no", "no", "all", "no", "yes"]
    assert out.getvalue().count("change it?") == 2


def test_the_end_of_the_input_stops():
    assert stepper()[0].ask("spark1", CHANGE) == "stop"


def test_what_happens_meanwhile_is_shown_afterwards():
    def meanwhile():
        thread = threading.Thread(target=display.take, args=(Note("it goes on", node="spark2"),))
        thread.start()
        thread.join()
        assert "it goes on" not in out.getvalue()
        return "y"

    asking, display, out = stepper(meanwhile)
    asking.ask("spark1", CHANGE)
    assert out.getvalue().index("change it?") < out.getvalue().index("it goes on")
