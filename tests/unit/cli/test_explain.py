"""`explain` as a shell sees it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cases import cases
from program import invoke

CASES = cases(__file__, "explain.toml")

DATA = Path(__file__).parents[2] / "data"


def run(*words: str, stdin: str = "", as_json: bool = False) -> str:
    options = ["--json"] if as_json else []
    result = invoke(*options, "explain", *words, stdin=stdin, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def test_an_effect_without_its_cause_says_so():
    killed = (DATA / "vllm_worker_killed.log").read_text()
    text = run("-", stdin=killed[killed.index("(EngineCore pid=518)") :])
    assert text.startswith("only consequences are in these logs, not their cause")
    assert "worker-died" in text


def test_a_piece_of_a_log_is_not_called_free_of_errors():
    """Only a server that came up shows that there was none."""
    first = (DATA / "vllm_healthy.log").read_text().splitlines(keepends=True)[0]
    assert not run("-", stdin=first).startswith("no error")


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
