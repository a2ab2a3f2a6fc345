"""Lines of logs: prefixes in every layer, times, errors and echoes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_cluster.logs import lines
from spark_cluster.logs.lines import ParsedLine, error_in, read

PREFIXED = [
    ("plain text", ParsedLine("plain text")),
    (
        "(EngineCore pid=518) ERROR 11-20 14:14:29 [core.py:1512] RuntimeError: x",
        ParsedLine("RuntimeError: x", "11-20 14:14:29.000000", "", "EngineCore pid=518", "ERROR"),
    ),
    (
        "2026-11-20T14:12:18.9Z \x1b[36m(RayWorkerProc pid=112, ip=10.77.0.2)\x1b[0m "
        "(Worker_TP1 pid=112) INFO 11-20 14:14:08 [a.py:1] text",
        ParsedLine(
            "text",
            "11-20 14:12:18.900000",
            "2026-11-20T14:12:18.9Z",
            "RayWorkerProc pid=112, ip=10.77.0.2 Worker_TP1 pid=112",
            "INFO",
        ),
    ),
    (
        "2026-11-20 14:13:51,036\tINFO worker.py:1691 -- Using address 10.77.0.1:18379",
        ParsedLine(
            "worker.py:1691 -- Using address 10.77.0.1:18379", "11-20 14:13:51.036000", level="INFO"
        ),
    ),
    (
        "W1120 14:11:12.548000 516 torch/_library/triton.py:53] Triton not available",
        ParsedLine(
            "516 torch/_library/triton.py:53] Triton not available",
            "11-20 14:11:12.548000",
            level="WARNING",
        ),
    ),
    (
        "[W1120 14:14:05.775517276 socket.cpp:207] [c10d] no hostname",
        ParsedLine("socket.cpp:207] [c10d] no hostname", "11-20 14:14:05.775517", level="WARNING"),
    ),
    ("INFO:     Application startup complete.",
     ParsedLine("Application startup complete.", level="INFO")),
    ("spark1 vllm: 2026-11-20T14:12:18Z a",
     ParsedLine("a", "11-20 14:12:18.000000", "2026-11-20T14:12:18Z")),
    ("vllm-1  | OSError: x", ParsedLine("OSError: x")),
    ("(a) text\x1b[32m [repeated 2x across cluster] (Ray deduplicates)\x1b[0m",
     ParsedLine("text", speaker="a", repeats=2)),
    ('{"log":"OSError: x\\n","stream":"stderr","time":"2026-11-20T14:12:18.9Z"}',
     ParsedLine("OSError: x", "11-20 14:12:18.900000", "2026-11-20T14:12:18.9Z")),
    ('{"log":', ParsedLine('{"log":')),
    ("Nov  2 14:12:18 spark-2a60 kernel: NVRM: Xid (PCI:000f:01:00): 119",
     ParsedLine("NVRM: Xid (PCI:000f:01:00): 119", "11-02 14:12:18.000000")),
    ("2026-11-20T14:12:18+0000 spark1 dockerd[9]: OSError: x",
     ParsedLine("OSError: x", "11-20 14:12:18.000000",
                "2026-11-20T14:12:18+0000")),
    ("", ParsedLine("")),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "line"), PREFIXED)
def test_the_layers(raw, line):
    assert read(raw) == line


@given(st.text())
@settings(deadline=None)
def test_no_line_is_too_strange(text):
    line = read(text)
    error_in(line, text)
    assert "\x1b[" not in line.text or "\x1b[" in text


@given(
    st.text(alphabet="abc XYZ0:-_'", min_size=1, max_size=30).filter(str.strip),
    st.sampled_from(["", "2026-11-20T14:12:18.9Z ", "spark1 vllm: ", "vllm-1  | "]),
    st.sampled_from(["", "\x1b[36m(RayWorkerProc pid=5, ip=10.0.0.2)\x1b[0m "]),
    st.sampled_from(["", "(EngineCore pid=1) ", "(W pid=1) ERROR 11-20 14:14:29 [a.py:1] "]),
)
@settings(deadline=None)
def test_no_layer_hides_an_error(said, first, second, third):
    line = read(f"{first}{second}{third}KeyError: {said}")
    assert error_in(line) == f"KeyError: {said.rstrip()}"
    assert bool(line.at) == (first.startswith("2026") or "11-20" in third)


ERRORS = [
    ("torch.OutOfMemoryError: CUDA out of memory.", "torch.OutOfMemoryError: CUDA out of memory."),
    ("NotImplementedError", "NotImplementedError"),
    ("worker failed: ValueError('no room')", "ValueError('no room')"),
    ("Segmentation fault (core dumped)", "Segmentation fault"),
    ('    raise RuntimeError("not the text of an error")', ""),
    ("    raise exc.InvalidCxxCompiler", ""),
    ("INFO 11-20 14:12:18 [a.py:1] handled OSError: it is fine", ""),
    ("  File /opt/a/b/SomeError.py, line 3", ""),
    ("no errors", ""),
]


@pytest.mark.parametrize(("raw", "error"), ERRORS)
def test_errors(raw, error):
    assert error_in(read(raw)) == error


def test_what_follows_from_another_error():
    assert lines.is_echo("RuntimeError: Engine core initialization failed. See root cause above.")
    assert lines.is_echo("RuntimeError: Worker failed with error 'x'")
    assert not lines.is_echo("ValueError: Free memory on device cuda:0 is less than desired")


def test_a_line_without_a_time_has_that_before_it():
    told = list(
        lines.errors_of(
            "(E pid=1) INFO 11-20 14:00:01 [a.py:1] a\nValueError: x\n"
            "(E pid=1) ERROR 11-20 14:00:03 [a.py:1] OSError: y\n"
        )
    )
    assert [(t.text, t.line.at) for t in told] == [
        ("ValueError: x", "11-20 14:00:01.000000"),
        ("OSError: y", "11-20 14:00:03.000000"),
    ]
