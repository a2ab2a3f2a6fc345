"""What people paste of a log: wrapped lines, the last source line of a traceback, single lines."""

from __future__ import annotations

import textwrap

import pytest
from factories import log_of

from spark_cluster.issues import explain as explain_module
from spark_cluster.issues.explain import Explanation, explain
from spark_cluster.issues.log_lines import joined, raised, read

GATE = "ValueError: Free memory on device cuda:0 (104.5/121.69 GiB) on startup is less than"
REST = "desired GPU memory utilization (0.92, 111.95 GiB)."
STARTED = "(APIServer pid=1) INFO 11-20 14:00:00 [a.py:1] vLLM API server version 0.28.0\n"
NO_NVCC = 'raise RuntimeError("FlashInfer requires GPUs with sm75 or higher")'
FRAME = '(E pid=9)   File "flashinfer/jit/core.py", line 108, in check_cuda_arch\n'


def of(*lines: str) -> Explanation:
    return explain([log_of("\n".join([*lines, ""]))])


def test_an_error_that_was_wrapped_is_known_by_both_of_its_lines():
    said = "ValueError: A speculative model was provided, but `num_speculative_tokens`"
    found = of(said, "    was not provided")
    assert (found.cause.finding.id, found.verdict) == ("speculative-config-wrong", "cause")
    assert found.cause.finding.found.endswith("was not provided")


@pytest.mark.parametrize("width", [80, 100, 120])
@pytest.mark.parametrize("cut", ["at a word", "anywhere"])
@pytest.mark.parametrize(
    "process", ["", "(EngineCore pid=88) ERROR 11-27 06:12:09 [core.py:1484] "]
)
def test_a_line_that_a_page_or_a_terminal_has_wrapped_is_read_whole(width, cut, process):
    line = f"{process}AssertionError: Chunked attention with lookback requires the Triton backend"
    pieces = [line[at : at + width] for at in range(0, len(line), width)]
    found = of(*(textwrap.wrap(line, width) if cut == "at a word" else pieces))
    assert found.cause.finding.id == "chunked-attention-needs-triton"


@pytest.mark.parametrize(
    "following",
    [
        "INFO 11-20 14:14:29 [a.py:1] desired GPU memory utilization",
        "(Worker pid=7) desired GPU memory utilization",
        "KeyError: 'desired GPU memory utilization'",
        "Traceback (most recent call last):",
        "",
    ],
)
def test_a_line_of_its_own_is_no_rest_of_an_error(following):
    assert joined(GATE, read(GATE), [following, REST]) == ""


def test_nothing_follows_the_end_of_a_sentence_or_a_short_error():
    for whole in (f"{GATE} (a, b).", "KeyError: 17"):
        assert joined(whole, read(whole), [REST]) == ""


def test_the_source_line_of_an_error_is_one_where_the_log_ends_with_it():
    cut = of(f"{FRAME}(E pid=9)     {NO_NVCC}", "(E pid=9)     ^^^^^^^^^^")
    assert cut.cause.finding.id == "nvcc-too-old"
    assert cut.cause.finding.found.startswith("RuntimeError: FlashInfer requires")


def test_the_source_line_of_an_error_is_none_where_the_error_follows():
    assert raised(NO_NVCC, ["    ^^^^^^^", "RuntimeError: other"]) == ""
    found = of(FRAME, f"(E pid=9)     {NO_NVCC}", "(E pid=9) RuntimeError: something else")
    assert not found.cause.known


@pytest.mark.parametrize("source", ["raise", "raise error", "raise RuntimeError(", "raise X(a)"])
def test_a_source_line_without_a_text_says_nothing(source):
    assert raised(source, []) == ""


@pytest.mark.parametrize(
    "line",
    [
        "Input tensor addresses changed between capture and replay",
        "triton OutOfResources: new Required: 110592, limit: 101376",
    ],
)
def test_a_single_line_that_was_pasted_is_an_error_without_the_word(line):
    found = of(line)
    assert found.verdict != "no-error"
    assert found.cause.finding.found in line


def test_the_same_words_in_a_whole_log_are_none():
    routine = [f"a routine line {letter}" for letter in "abcdefgh"]
    assert of(*routine, "fused norm is not supported, using the plain one").cause is None
    assert of("INFO 11-20 14:14:29 [a.py:1] fp8 is not supported, using bf16").cause is None


def test_a_certain_issue_logged_as_a_warning_goes_before_a_line_that_looks_like_an_error():
    found = of("Docker GPU patch failed.", "NVRM: ... Out of memory [NV_ERR_NO_MEMORY]")
    assert (found.cause.finding.id, found.verdict) == ("driver-out-of-memory", "likely")
    error = of("NVRM: ... Out of memory [NV_ERR_NO_MEMORY]", "ValueError: brand new")
    assert error.cause.finding.found == "ValueError: brand new"


def test_the_last_lines_stand_below_what_only_follows():
    found = of("RuntimeError: NCCL error: unhandled system error", "transport/net_ib/x.cc ...")
    assert found.verdict == "effects"
    assert found.last == {"x.log": ["RuntimeError: NCCL error: unhandled system error",
                                   "transport/net_ib/x.cc ..."]}  # fmt: skip


def test_a_flood_that_differs_in_numbers_is_judged_a_bounded_number_of_times(monkeypatch):
    judged = 0
    real = explain_module.recognise

    def counted(*given):
        nonlocal judged
        judged += 1
        return real(*given)

    monkeypatch.setattr(explain_module, "recognise", counted)
    lines = [f"KeyError: request {n} of 3f0c9a{n:010x}" for n in range(5000)]
    found = of(*lines, "RuntimeError: No CUDA GPUs are available")
    assert any("No CUDA GPUs" in p.finding.found and p.known for p in found.problems)
    assert judged < explain_module.MOST + explain_module.FLOOD + 50
