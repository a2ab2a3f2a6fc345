"""Splitting a pasted text into commands and words."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_cluster.errors import UsageError
from spark_cluster.importers.shell import split


def texts(text: str) -> list[list[str]]:
    return [[word.text for word in command.words] for command in split(text)[0]]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a b  c", [["a", "b", "c"]]),
        ("a \\\n  b\\\n c", [["a", "b", "c"]]),
        ("a # b\nc", [["a"], ["c"]]),
        ("a#b", [["a#b"]]),
        ("a 'b c' \"d e\"", [["a", "b c", "d e"]]),
        ('a "b \\" \\$x \\n"', [["a", 'b " $x \\n']]),
        ("a b\\ c", [["a", "b c"]]),
        ("a ''", [["a", ""]]),
        ("a $HOME ~/x ${X:-y z} $(id -u) `pwd`", None),
        ("a && b || c; d | e & f", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]),
        ("a > log 2>&1 b", [["a", "b"]]),
        ("a\r\nb", [["a"], ["b"]]),
        ("", []),
        ("# nothing", []),
        ("a \\", [["a", ""]]),
    ],
)
def test_words(text: str, expected: list[list[str]] | None) -> None:
    if expected is None:
        expected = [["a", "$HOME", "~/x", "${X:-y z}", "$(id -u)", "`pwd`"]]
    assert texts(text) == expected


def test_every_word_knows_its_line() -> None:
    commands, _ = split("a \\\n b 'c\nd' \\\n e\nf")
    assert [(w.text, w.line) for c in commands for w in c.words] == [
        ("a", 1),
        ("b", 2),
        ("c\nd", 2),
        ("e", 4),
        ("f", 5),
    ]


@pytest.mark.parametrize(
    ("text", "last"),
    [
        ("A=x; run $A ${A} \"$A-y\" '$A' $B", ["run", "x", "x", "x-y", "$A", "$B"]),
        ("export A=x B='y z'\nrun $A$B", ["run", "xy z"]),
        ("A=x\nA=y\nrun $A", ["run", "y"]),
        ("A=x run $A", ["A=x", "run", "$A"]),  # a shell does not know it yet either
        ("A=${B:-x}\nrun $A", ["run", "$A"]),
        ("A=x\nrun ${A:-y} $AB", ["run", "${A:-y}", "$AB"]),
    ],
)
def test_variables_that_the_text_sets(text: str, last: list[str]) -> None:
    assert texts(text)[-1] == last


def test_redirections_are_told() -> None:
    (command,), _ = split("vllm serve m > /tmp/log 2>&1")
    assert command.left_out == [">/tmp/log", "2>&1"]


@pytest.mark.parametrize(
    "text",
    [
        "run a \\ \n --b c",  # a blank after the backslash
        "run a \\  # why\n --b c",  # a comment after it
        "run a \\\n # why\n --b c",  # a line of comment between
        "run a\n--b c",  # no backslash at all
    ],
)
def test_what_the_writer_meant_goes_on_and_is_noted(text: str) -> None:
    commands, notes = split(text)
    assert [[word.text for word in command.words] for command in commands] == [
        ["run", "a", "--b", "c"]
    ]
    assert len(notes) == 1
    assert "read as continued" in notes[0]


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a\nb 'c d", "line 2", "quote is never closed"),
        ('a "b', "line 1", "quote is never closed"),
        ("a $(b", "line 1", "'$(' is never closed"),
        ("a ${b", "line 1", "'${' is never closed"),
        ("a `b", "line 1", "'`' is never closed"),
    ],
)
def test_what_is_not_closed_is_an_error_with_its_line(text: str, line: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        split(text)
    assert caught.value.where == line
    assert message in caught.value.message


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"))))
def test_quoted_words_come_back(words: list[str]) -> None:
    line = "run " + shlex.join(words)
    assert texts(line) == [["run", *words]]


@given(st.text(alphabet="ab '\"\\$(){}`#;&|<>\n-", max_size=40))
def test_anything_is_split_or_refused(text: str) -> None:
    try:
        commands, _ = split(text)
    except UsageError as error:
        assert error.where.startswith("line ")
    else:
        assert all(word.line >= 1 for command in commands for word in command.words)
