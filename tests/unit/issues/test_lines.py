"""Lines of logs: prefixes in every layer, times, errors and echoes."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark_cluster.issues import log_lines
from spark_cluster.issues.log_lines import ParsedLine, error_in, read

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
    ("2026-11-20T14:12:18+01:00 spark1 vllm[812]: OSError: x",
     ParsedLine("OSError: x", "11-20 14:12:18.000000", "2026-11-20T14:12:18+01:00")),
    ("2026-11-20T14:12:18.123456789Z vllm serve: error: argument --port: expected one argument",
     ParsedLine("vllm serve: error: argument --port: expected one argument",
                "11-20 14:12:18.123456", "2026-11-20T14:12:18.123456789Z")),
    ("Nov 20 14:12:18.123456 spark1 vllm[812]: (W pid=1) OSError: x",
     ParsedLine("OSError: x", "11-20 14:12:18.123456", speaker="W pid=1")),
    ("Fri 2026-11-20 14:12:18 CET spark1 vllm[812]: OSError: x",
     ParsedLine("OSError: x", "11-20 14:12:18.000000")),
    ("[ 1234.567890] spark1 vllm[812]: OSError: x", ParsedLine("OSError: x")),
    ('{"MESSAGE":"OSError: x","__REALTIME_TIMESTAMP":"1795183938123456","_PID":"1"}',
     ParsedLine("OSError: x", "11-20 14:12:18.123456", "2026-11-20T14:12:18.123456Z")),
    ('{"MESSAGE":[79,83,69,114,114,111,114,58,32,255]}', ParsedLine("OSError: \ufffd")),
    ('{"MESSAGE":null}', ParsedLine('{"MESSAGE":null}')),
    ("vllm-1  | 2026-11-20T14:12:18.5Z OSError: x",
     ParsedLine("OSError: x", "11-20 14:12:18.500000", "2026-11-20T14:12:18.5Z")),
    ("\x1b[36mvllm-1  |\x1b[0m OSError: x", ParsedLine("OSError: x")),
    ("vllm.1.x@spark1    | OSError: x", ParsedLine("OSError: x")),
    ("[pod/vllm-0/server] OSError: x", ParsedLine("OSError: x")),
    ("ERROR 2026-11-20 14:12:18.125 [core.py:11] OSError: x",
     ParsedLine("OSError: x", "11-20 14:12:18.125000", level="ERROR")),
    ("2026-11-20 14:12:18.125 | ERROR 11-20 13:12:18 [core.py:11] OSError: x",
     ParsedLine("OSError: x", "11-20 14:12:18.125000", level="ERROR")),
    ("2026-11-20 14:12:18 | ERROR | stderr | OSError: x",
     ParsedLine("OSError: x", "11-20 14:12:18.000000", level="ERROR")),
    ("2026-11-20 14:12:18.125 | ERROR    | a.b:c:73 - OSError: x",
     ParsedLine("OSError: x", "11-20 14:12:18.125000", level="ERROR")),
    ("^[[1;36m(W pid=1)^[[0;0m ERROR 11-20 14:12:18 [a.py:2] OSError: x^M",
     ParsedLine("OSError: x", "11-20 14:12:18.000000", speaker="W pid=1", level="ERROR")),
    ("Nov 20 14:12:18 spark1 vllm[812]: #033[1;36m(W pid=1)#033[0;0m OSError: x#015",
     ParsedLine("OSError: x", "11-20 14:12:18.000000", speaker="W pid=1")),
    (r"\u001b[1;36m(W pid=1)\u001b[0;0m OSError: x", ParsedLine("OSError: x", speaker="W pid=1")),
    (" [36m(W pid=1) [0m OSError: x", ParsedLine("OSError: x", speaker="W pid=1")),
    ("[rank0]:[rank0]: OSError: x", ParsedLine("OSError: x")),
    ("    | OSError: x", ParsedLine("OSError: x")),
    ("(W pid=1)     | OSError: x", ParsedLine("OSError: x", speaker="W pid=1")),
    ("> (W pid=1) OSError: x", ParsedLine("OSError: x", speaker="W pid=1")),
    ("[VLLM LOG] (W pid=5) OSError: x", ParsedLine("OSError: x", speaker="W pid=5")),
    ("[2025-06-13 01:49:41,730 E 1 1] gcs_rpc_client.h:179: Failed",
     ParsedLine("gcs_rpc_client.h:179: Failed", "06-13 01:49:41.730000", level="ERROR")),
    ("(raylet) [2025-04-02 15:02:00,117 W 13 13] (raylet) node_manager.cc:3069: x",
     ParsedLine("(raylet) node_manager.cc:3069: x", "04-02 15:02:00.117000", speaker="raylet",
                level="WARNING")),
    ("(autoscaler +10m11s, ip=1.2.3.4) Error: x",
     ParsedLine("Error: x", speaker="autoscaler +10m11s, ip=1.2.3.4")),
    ("ERROR 06-25 15:28:30 worker_base.py:148] OSError: x",
     ParsedLine("OSError: x", "06-25 15:28:30.000000", level="ERROR")),
    ("", ParsedLine("")),
]  # fmt: skip


@pytest.mark.parametrize(("raw", "line"), PREFIXED)
def test_the_layers(raw, line):
    assert read(raw) == line


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
    (
        "[2024-04-17 20:07:13,727] [ERROR] [MainThread] [asyncio] >>> AssertionError",
        "AssertionError",
    ),
    (
        "Worker proc VllmWorker-1 died unexpectedly (exit code: None)",
        "Worker proc VllmWorker-1 died unexpectedly",
    ),
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


def test_an_error_whose_text_begins_in_the_next_line():
    assert error_in(read("(W pid=1) ValueError:"), lambda: "(W pid=1)   bad") == "ValueError: bad"
    assert error_in(read("(W pid=1) AssertionError:")) == "AssertionError"


def test_what_follows_from_another_error():
    assert log_lines.is_echo("RuntimeError: Error raised in subprocess:")
    inspected = (
        "Model architectures ['LlamaForCausalLM'] failed to be inspected. Please check the logs"
    )
    assert log_lines.is_echo(
        f"pydantic_core.ValidationError: 1 validation error: {inspected} for more"
    )
    assert log_lines.is_echo(
        "RuntimeError: Engine core initialization failed. See root cause above."
    )
    assert log_lines.is_echo("RuntimeError: Worker failed with error 'x'")
    assert not log_lines.is_echo("ValueError: Free memory on device cuda:0 is less than desired")


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
