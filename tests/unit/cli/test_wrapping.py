"""Lines and tables at a terminal's width: words stay whole, and so does what is copied."""

import io

import pytest
from cases import cases
from hypothesis import example, given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.text import Text

from spark_cluster.cli.console import plain_table
from spark_cluster.cli.tables import NARROWEST
from spark_cluster.cli.terminal import Console, wrapped

CASES = cases(__file__, "wrapping.toml")

WORDS = st.lists(st.text("abc日", min_size=1, max_size=16), min_size=1, max_size=30)


@pytest.mark.parametrize(("line", "shown"), CASES["lines"])
def test_a_line_of_40_columns(line, shown):
    assert wrapped(Text(line), 40).plain.split("\n") == shown


@given(WORDS)
@example(["a", "a" * 13 + "日日日"])
def test_no_word_is_lost_or_broken(words):
    lines = wrapped(Text(" ".join(words)), 20).plain.split("\n")
    assert " ".join(lines).split() == words
    assert all(cell_len(line) <= 20 or len(line.split()) == 1 for line in lines)


def printed(thing, *, width=40, terminal=True):
    out = io.StringIO()
    console = Console(file=out, width=width)
    console._force_terminal = terminal
    console.print(thing)
    return out.getvalue().splitlines()


def test_a_line_in_a_pipe_stays_one():
    assert printed("word " * 20, terminal=False) == ["word " * 20]
    assert len(printed("word " * 20)) > 1


@pytest.mark.parametrize("case", CASES["tables"].values(), ids=CASES["tables"])
def test_a_text_is_wrapped_in_its_column_or_goes_below_its_row(case):
    made = plain_table("node", "found", "GiB", right=("GiB",), whole=("node",), wide=True)
    for row in case["rows"]:
        made.add_row(*row)
    assert printed(made, width=case["width"]) == case["lines"]


@given(st.lists(st.tuples(WORDS, WORDS), min_size=1, max_size=3))
def test_no_table_loses_or_breaks_a_word(rows):
    made = plain_table("node", "found", "why", whole=("node",))
    for found, why in rows:
        made.add_row("spark1", " ".join(found), " ".join(why))
    lines = printed(made, width=50)
    shown = " ".join(lines).split()
    assert all(cell_len(line) <= 50 and line == line.rstrip() for line in lines)
    assert {word for row in rows for cell in row for word in cell} <= set(shown)
    for column in made.columns[1:]:
        longest = max(cell_len(str(cell)) for cell in column.cells)
        assert column.width is None or column.width >= min(NARROWEST, longest)
