"""Lines of logs: prefixes in every layer, times, errors and echoes."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import slow_patterns
from cases import cases
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_cluster.issues import log_lines
from spark_cluster.issues.log_lines import (
    ANCHORS,
    ParsedLine,
    complaint_in,
    error_in,
    faint_complaint_in,
    read,
)

TABLES = cases(__file__, "lines.toml")


@pytest.mark.parametrize("line", TABLES["line"])
def test_the_layers(line):
    told = dict(line)
    assert read(told.pop("raw")) == ParsedLine(**told)


@pytest.mark.parametrize("before", ["", "(E pid=1) ", "(E pid=1) ERROR 11-20 14:14:29 [a.py:1] "])
def test_a_traceback_is_indented_and_its_error_is_not(before):
    assert read(f"{before}  File 'x.py', line 1").indented
    assert not read(f"{before}OSError: x").indented


@given(st.text())
@settings(deadline=None)
def test_no_line_is_too_strange(text):
    line = read(text)
    error_in(line, text)
    assert "\x1b[" not in line.text or "\x1b[" in text


@given(
    st.text(alphabet="abc XYZ0:-_'", min_size=1, max_size=30).filter(str.strip),
    st.sampled_from(
        [
            "",
            "2026-11-20T14:12:18.9Z ",
            "spark1 vllm: ",
            "vllm-1  | ",
            "2026-11-20T14:12:18Z a vllm: ",
        ]
    ),
    st.sampled_from(["", "\x1b[36m(RayWorkerProc pid=5, ip=10.0.0.2)\x1b[0m "]),
    st.sampled_from(["", "(EngineCore pid=1) ", "(W pid=1) ERROR 11-20 14:14:29 [a.py:1] "]),
)
@settings(deadline=None)
def test_no_layer_hides_an_error(said, first, second, third):
    line = read(f"{first}{second}{third}KeyError: {said}")
    assert error_in(line) == f"KeyError: {said.rstrip()}"
    assert bool(line.at) == (first.startswith("2026") or "11-20" in third)


@pytest.mark.parametrize("name", ["vllm", "ray", "vllm-chat"])
@pytest.mark.parametrize("stamp", ["2026-11-20T14:12:18Z ", ""])
def test_a_line_as_our_own_logs_prints_it_is_read_as_the_container_wrote_it(stamp, name):
    line = read(f"{stamp}spark1 {name}: (W pid=1) ERROR [a.py:1]   File 'x.py', line 1")
    assert (line.speaker, line.level, line.text) == ("W pid=1", "ERROR", "File 'x.py', line 1")
    assert line.indented


@pytest.mark.parametrize(("raw", "error"), TABLES["errors"].items())
def test_errors(raw, error):
    assert error_in(read(raw)) == error


@pytest.mark.parametrize("raw", TABLES["complaints"]["look_like_an_error"])
def test_what_looks_like_an_error_without_being_an_exception(raw):
    assert complaint_in(read(raw))
    assert any(anchor in raw for anchor in ANCHORS), "or it is never looked at"


@pytest.mark.parametrize("raw", TABLES["complaints"]["do_not"])
def test_what_does_not(raw):
    assert complaint_in(read(raw)) == ""


def test_a_word_that_may_mean_one():
    assert faint_complaint_in(read("2 workers killed at node 10.0.0.1"))
    assert faint_complaint_in(read("x NCCL INFO Failed to open libibverbs.so[.1]")) == ""
    assert faint_complaint_in(read("INFO:     a request failed")) == ""


def test_an_error_whose_text_begins_in_the_next_line():
    assert error_in(read("(W pid=1) ValueError:"), lambda: "(W pid=1)   bad") == "ValueError: bad"
    assert error_in(read("(W pid=1) AssertionError:")) == "AssertionError"


@pytest.mark.parametrize("follows", [True, False])
def test_what_follows_from_another_error(follows):
    for text in TABLES["errors_that_follow" if follows else "errors_that_do_not_follow"]:
        assert log_lines.is_echo(text) is follows, text


def test_a_line_without_a_time_has_that_before_it():
    told = list(
        log_lines.errors_of(
            "(E pid=1) INFO 11-20 14:00:01 [a.py:1] a\nValueError: x\n"
            "(E pid=1) ERROR 11-20 14:00:03 [a.py:1] OSError: y\n"
        )
    )
    assert [(t.text, t.line.at) for t in told] == [
        ("ValueError: x", "11-20 14:00:01.000000"),
        ("OSError: y", "11-20 14:00:03.000000"),
    ]


def test_no_pattern_takes_long_on_a_line_that_is_made_for_it():
    path = Path(log_lines.__file__).with_name("log_lines.toml")
    kinds = {
        name: found
        for name, found in tomllib.loads(path.read_text(encoding="utf-8")).items()
        if isinstance(found, list) and name not in ("anchors", "keepers", "loggers")
    }
    patterns = [(name, pattern) for name, found in kinds.items() for pattern in found]
    assert len(patterns) > 100
    slow = [p for p in patterns if slow_patterns.seconds(p[1])[0] > slow_patterns.LIMIT_S]
    assert slow == []
