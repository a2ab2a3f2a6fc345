"""`explain` as a shell sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cases import cases
from json_schema import document as fits
from program import invoke

CASES = cases(__file__, "explain.toml")

DATA = Path(__file__).parents[2] / "data"


def run(*words: str, stdin: str = "", as_json: bool = False) -> str:
    options = ["--json"] if as_json else []
    result = invoke(*options, "explain", *words, stdin=stdin, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_the_cause_is_on_top():
    text = run(str(DATA / "vllm_no_compiler.log"))
    lines = text.splitlines()
    assert lines[0].startswith("the cause")
    assert "no C++ compiler" in lines[1]
    assert "TORCHDYNAMO_DISABLE=1" in text
    assert text.index("InvalidCxxCompiler") < text.index("consequences of the above")


def test_an_effect_without_its_cause_says_so():
    killed = (DATA / "vllm_worker_killed.log").read_text()
    text = run("-", stdin=killed[killed.index("(EngineCore pid=518)") :])
    assert text.startswith("only consequences are in these logs, not their cause")
    assert "worker-died" in text


def test_what_a_line_can_mean_among_other_things_is_no_cause():
    text = run("-", stdin="ValueError: invalid literal for int() with base 10: ''\n")
    assert text.splitlines()[1].startswith("? perhaps: ")


def test_a_log_in_which_nothing_is_recognised_is_not_called_free_of_errors():
    text = run("-", stdin="$ vllm serve /models/m --kv-cache-memory-bytes 1G\n")
    assert text.startswith("neither an error nor a start was recognised")


def test_an_error_of_a_shell_is_no_warning():
    text = run("-", stdin="/bin/bash: line 1: ray: command not found\n")
    assert text.startswith("the cause")
    assert "image-without-ray" in text


def test_a_piece_of_a_log_is_not_called_free_of_errors():
    """Only a server that came up shows that there was none."""
    first = (DATA / "vllm_healthy.log").read_text().splitlines(keepends=True)[0]
    assert not run("-", stdin=first).startswith("no error")


def test_what_is_not_a_log_has_no_decisive_line():
    text = run("-", stdin="Error: the mean error is 7 %, and nothing here is an engine's\n")
    assert text.startswith("no line of an engine was recognised; what looks most like an error")


def test_all_ranks_are_fine():
    text = run(str(DATA / "vllm_mp_rank0.log"), str(DATA / "vllm_mp_rank1.log"))
    assert text.startswith("no error")
    assert "not in the logs" not in text
    assert "Application startup complete" in text


def test_the_engine_is_named():
    assert ", vLLM" in run(str(DATA / "vllm_no_compiler.log")).splitlines()[0]
    text = "launch_server.py: error: unrecognized arguments: --reasoning_parser kimi_k2\n"
    assert run("-", stdin=text).splitlines()[0] == "the cause  standard input: 1 line, SGLang"
    assert json.loads(run("-", stdin=text, as_json=True))["engine"] == "SGLang"


def test_standard_input_and_json():
    found = json.loads(run("-", stdin="RuntimeError: No CUDA GPUs are available\n", as_json=True))
    assert found["cause"]["id"] == "gpu-dead"
    assert found["cause"]["where"] == "standard input"
    assert found["logs"] == [{"name": "standard input", "bytes": 41, "lines": 1}]


def test_markup_in_a_log_is_text():
    assert "ValueError: [red]x[/]" in run("-", stdin="ValueError: [red]x[/]\n")


def test_about_an_issue():
    text = run("--about", "nccl-sockets")
    assert "/dev/infiniband" in text
    assert "lint, explain, doctor (serving.hcas, serving.nccl-sockets)" in text
    everything = fits("explain-about", run("--about", "all", as_json=True))["issues"]
    assert len(everything) > 100
    assert "nccl-sockets" in run("--about", "all")


@pytest.mark.parametrize("line", CASES["errors"])
def test_what_the_kernel_reports_is_never_headed_no_error(tmp_path, line):
    """P06: the headline does not contradict the lines below it, known or not."""
    log = tmp_path / "kernel.log"
    for prefix in ("Sep 17 03:13:10 spark2 kernel: ", "[ 1234.567890] ", ""):
        log.write_text(f"{prefix}{line}\n")
        shown = run(str(log))
        assert not shown.startswith("no error"), shown
        found = json.loads(run(str(log), as_json=True))
        assert found["verdict"] != "no-error"
        assert line[-20:] in found["issues"][0]["found"]
