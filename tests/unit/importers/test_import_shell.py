"""Splitting a pasted text into commands and words."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_cluster.errors import UsageError
from spark_cluster.importers.expansion import Variables, read_env
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
        expected = [["a", "$HOME", "~/x", "y", "z", "$(id -u)", "`pwd`"]]
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
        ("export A=x B='y z'\nrun $A$B \"$B\"", ["run", "xy", "z", "y z"]),
        ("A=x\nA=y\nrun $A", ["run", "y"]),
        ("A=x run $A", ["A=x", "run", "$A"]),  # a shell does not know it yet either
        ("A=${B:-x}\nrun $A", ["run", "x"]),
        ("A=x\nrun ${A:-y} $AB", ["run", "x", "$AB"]),
        ('A=\nrun ${A:-y} ${A-z} ${A:+w} "${A}" $A', ["run", "y", ""]),
        (": ${A:=x}\nrun $A ${A:+y} ${B:?none}", ["run", "x", "y", "${B:?none}"]),
        ("A=$(date)\nrun ${A:-x} ${A}", ["run", "${A:-x}", "${A}"]),
        ("run ${A:-${B:-${C}}/x}", ["run", "${C}/x"]),
        ("N=4\nrun $((N * (2 + 1))) $((7 / 2)) $((X + 1))", ["run", "12", "3", "$((X + 1))"]),
        ("PATH=/a:${PATH:-}\nrun $PATH", ["run", "/a:${PATH:-}"]),
        ("A=(x 'y z')\nA+=(w)\nrun \"${A[@]}\"", ["run", "x", "y z", "w"]),
        ('A=()\nrun "${A[@]}" ${A[@]+"${A[@]}"} "$@" x', ["run", "x"]),
        ("A=(\n  x # why\n  y\n)\nrun ${A[*]}", ["run", "x", "y"]),
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


@pytest.mark.parametrize(
    ("text", "runs"),
    [
        ("if true; then\n run\nfi", True),
        ('A=1\nif [ "$A" = 2 ]; then run; else x; fi', False),
        ("A=1\nif [[ $A == 2 ]]; then x; elif [[ $A == 1 ]]; then run; fi", True),
        ("A=1\nif [[ $A == 1 ]]; then x; else run; fi", False),
        ('A=1\nif [ -z "$A" ] || [ -n "$A" ]; then run; fi', True),
        ('A=1\nif [ -n "$A" ] && [ -f x ]; then run; fi', None),
        ("if ! false; then run; fi", True),
        ("if command; then x; else run; fi", None),
        ("[ -f x ] && run", None),
        ("[ 1 = 2 ] && x\nrun", True),
        ("[ 1 = 2 ] && A=(x)\nrun", True),
        ("[ 1 = 2 ] || run", True),
        ("case b in a) x ;; b|c) run ;; *) y ;; esac", True),
        ("case b in\n a)\n run\n ;;\n *) y ;; esac", False),
        ("case $X in\n a) run ;;\nesac", None),
        ("case b in a) x ;; esac; run", True),
        ("for i in 1 2; do run; done", None),
        ("f() {\n run\n}\nf", True),
        ("function f {\n run\n}", True),
        ("x || { run; }", None),
        ("while x; do y; done; run", True),
        ("if (( 1 > 2 )); then run; fi", False),
        ("N=3\nif (( N < 2 || N > 2 && !(N == 4) )); then run; fi", True),
        ("N=0\nif (( N )); then x; else run; fi", True),
        ("((1 >= 2)) && x\nrun", True),
        ("((0 != 0)) || run", True),
        ("if (( UNKNOWN > 2 )); then run; fi", None),
        ("(( i++ )); run", True),
    ],
)
def test_which_commands_run(text: str, runs: bool | None) -> None:
    found = [one for one in split(text)[0] if [word.text for word in one.words] == ["run"]]
    assert [one.runs for one in found] == [runs]


def test_what_a_condition_sets_counts_where_nothing_else_is_known() -> None:
    text = "A=x\nif unknown; then A=y; B=z; C+=(w); fi\nrun $A $B"
    assert texts(text)[-1] == ["run", "x", "z"]
    (note,) = split("C=(v)\nif unknown; then C+=(--w); fi")[1]
    assert note == ("line 2: C gets --w under a condition that only the machine knows; left out")


def test_documents_belong_to_their_command() -> None:
    commands, _ = split("cat > f <<'E' && g\n$A 'b\nE\nh <<-X\n\tx\n\tX\ni <<Y\nj")
    assert [
        ([word.text for word in one.words], [word.text for word in one.documents])
        for one in commands
    ] == [(["cat"], ["$A 'b\n"]), (["g"], []), (["h"], ["\tx\n"]), (["i"], []), (["j"], [])]


def test_a_comment_that_hides_flags_is_noted() -> None:
    _, notes = split(f"run --a 1 # {'because ' * 12} --b 2")
    assert notes == ["line 1: to a shell everything after '#' is a comment, which hides flags here"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("A=1\nexport B = two words # c\n#D=1\nnothing\n", {"A": "1", "B": "two words"}),
        ("A='$x # y'\nB=\"${A} z\"  # c\nC=#\n", {"A": "$x # y", "B": "$x # y z", "C": ""}),
        ("A=${B:-c}\r\nA=$B\n", {"A": "$B"}),
        ('A="{\\"a\\": \\"b c\\"}" # d\nB=\'it\\\'s\n', {"A": '{"a": "b c"}', "B": "'it\\'s"}),
    ],
)
def test_files_of_variables(text: str, expected: dict[str, str]) -> None:
    assert read_env(text, Variables()) == expected
