"""Splitting a pasted text into commands and words."""

import shlex

import pytest
from cases import cases
from hypothesis import given
from hypothesis import strategies as st

from spark_cluster.errors import UsageError
from spark_cluster.importers.expansion import Variables, read_env
from spark_cluster.importers.shell import split

CASES = cases(__file__, "import_shell.toml")


def texts(text: str) -> list[list[str]]:
    return [[word.text for word in command.words] for command in split(text)[0]]


@pytest.mark.parametrize(("text", "expected"), CASES["words"])
def test_words(text, expected):
    assert texts(text) == expected


def test_every_word_knows_its_line():
    commands, _ = split("a \\\n b 'c\nd' \\\n e\nf")
    assert [(w.text, w.line) for c in commands for w in c.words] == [
        ("a", 1),
        ("b", 2),
        ("c\nd", 2),
        ("e", 4),
        ("f", 5),
    ]


@pytest.mark.parametrize(("text", "last"), CASES["variables"])
def test_variables_that_the_text_sets(text, last):
    assert texts(text)[-1] == last


def test_redirections_are_told():
    (command,), _ = split("vllm serve m > /tmp/log 2>&1")
    assert command.left_out == [">/tmp/log", "2>&1"]


@pytest.mark.parametrize("text", CASES["continued"])
def test_what_the_writer_meant_goes_on_and_is_noted(text):
    commands, notes = split(text)
    assert [[word.text for word in command.words] for command in commands] == [
        ["run", "a", "--b", "c"]
    ]
    assert len(notes) == 1
    assert "read as continued" in notes[0]


@pytest.mark.parametrize(("text", "line", "message"), CASES["open"])
def test_what_is_not_closed_is_an_error_with_its_line(text, line, message):
    with pytest.raises(UsageError) as caught:
        split(text)
    assert caught.value.where == line
    assert message in caught.value.message


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"))))
def test_quoted_words_come_back(words):
    line = "run " + shlex.join(words)
    assert texts(line) == [["run", *words]]


@given(st.text(alphabet="ab '\"\\$(){}`#;&|<>\n-", max_size=40))
def test_anything_is_split_or_refused(text):
    try:
        commands, _ = split(text)
    except UsageError as error:
        assert error.where.startswith("line ")
    else:
        assert all(word.line >= 1 for command in commands for word in command.words)


@pytest.mark.parametrize(("text", "runs"), CASES["conditions"])
def test_which_commands_run(text, runs):
    found = [one for one in split(text)[0] if [word.text for word in one.words] == ["run"]]
    assert [one.runs for one in found] == [None if runs == "unknown" else runs]


def test_what_a_condition_sets_counts_where_nothing_else_is_known():
    text = "A=x\nif unknown; then A=y; B=z; C+=(w); fi\nrun $A $B"
    assert texts(text)[-1] == ["run", "x", "z"]
    (note,) = split("C=(v)\nif unknown; then C+=(--w); fi")[1]
    assert note == ("line 2: C gets --w under a condition that only the machine knows; left out")


def test_documents_belong_to_their_command():
    commands, _ = split("cat > f <<'E' && g\n$A 'b\nE\nh <<-X\n\tx\n\tX\ni <<Y\nj")
    assert [
        ([word.text for word in one.words], [word.text for word in one.documents])
        for one in commands
    ] == [(["cat"], ["$A 'b\n"]), (["g"], []), (["h"], ["\tx\n"]), (["i"], []), (["j"], [])]


def test_a_comment_that_hides_flags_is_noted():
    _, notes = split(f"run --a 1 # {'because ' * 12} --b 2")
    assert notes == ["line 1: to a shell everything after '#' is a comment, which hides flags here"]


@pytest.mark.parametrize(("text", "expected"), CASES["env_files"])
def test_files_of_variables(text, expected):
    assert read_env(text, Variables()) == expected
