"""Which of what logs show is called the cause, and what is said when none is known."""

from __future__ import annotations

import pytest
from factories import log_of

from spark_cluster.issues.explain import Explanation, explain

START = "(APIServer pid=1) INFO 11-20 14:00:00 [a.py:1] vLLM API server version 0.28.0\n"
UP = "(APIServer pid=1) INFO 11-20 14:05:00 [a.py:1] Application startup complete.\n"
NEW = "(W pid=5) ERROR 11-20 14:0{0}:00 [a.py:1] ValueError: brand new\n"
OOM = "(W pid=5) ERROR 11-20 14:0{0}:05 [a.py:1] torch.OutOfMemoryError: CUDA out of memory.\n"
DEAD = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n"


def of(*texts: str) -> Explanation:
    return explain([log_of(text, f"log{n}") for n, text in enumerate(texts)])


def test_a_specific_issue_goes_before_the_error_just_before_it():
    """A traceback ends with what wraps the first error."""
    found = of(NEW.format(1) + OOM.format(1))
    assert (found.cause.finding.id, found.verdict) == ("cuda-out-of-memory", "cause")
    assert found.next_steps == []


def test_what_comes_much_later_may_be_a_consequence():
    """A container that Docker restarts finds the memory of the first start still taken."""
    found = of(NEW.format(1) + OOM.format(4))
    assert (found.cause.finding.found, found.verdict) == ("ValueError: brand new", "unknown")
    assert any("search the issues" in step for step in found.next_steps)


def test_an_error_of_a_request_long_before_is_no_cause():
    found = of(START + UP + NEW.format(6) + OOM.format(9))
    assert found.cause.finding.id == "cuda-out-of-memory"


def test_a_broad_issue_gives_way_to_an_earlier_error():
    hang = (
        "(E pid=1) ERROR 11-20 14:09:00 [a.py:1] TimeoutError: RPC call to sample_tokens timed out."
    )
    assert of(hang).verdict == "likely"
    assert of(hang).cause.finding.id == "worker-stopped-answering"
    both = of(hang, NEW.format(3))
    assert both.cause.finding.found == "ValueError: brand new"


def test_an_engine_that_died_is_never_without_an_error():
    found = of(START + UP + DEAD)
    assert found.verdict == "effects"
    assert any("kernel's log" in step for step in found.next_steps)


def test_a_start_without_end_is_no_success():
    found = of(START)
    assert found.verdict == "unfinished"
    assert any("ray status" in step for step in found.next_steps)
    assert of(START + UP).verdict == "no-error"


@pytest.mark.parametrize(
    "text",
    [
        "mycommand: error: new to all\n",
        "spark1:1:1 [0] x.cc:1 NCCL WARN something new\n",
        "a worker was killed by something\n",
        "[2025-06-13 01:49:41,730 E 1 1] x.cc:1: something new\n",
    ],
)
def test_a_line_that_looks_like_an_error_is_shown_whoever_wrote_it(text):
    found = of(START, text)
    assert found.verdict == "unknown"
    assert found.cause.finding.found in text
    assert not found.cause.certain


def test_a_plainer_line_goes_before_a_word():
    found = of("a worker was killed\nmycommand: error: new to all\n")
    assert found.cause.finding.found == "mycommand: error: new to all"


def test_endless_complaints_are_not_kept():
    found = of("".join(f"x: error: number {n}\n" for n in range(1000)))
    assert len(found.problems) == 50
