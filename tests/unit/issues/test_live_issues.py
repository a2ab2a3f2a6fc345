"""A live server that fails is told with the known issues that its recipe has."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from serve_plans import server_for

from spark_cluster.config.facts import Facts, Memory
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.schema import parse
from spark_cluster.config.topology import Node
from spark_cluster.engine import readiness_checks, state
from spark_cluster.errors import VerificationFailed
from spark_cluster.issues import rules
from spark_cluster.runner.session import Answer


def recipe(model: str, parser: str) -> Recipe:
    return parse(
        Recipe,
        {
            "name": "r",
            "model": {"name": model, "served_name": "m"},
            "image": {"ref": "own:1"},
            "engine_args": {"enable-auto-tool-choice": True, "tool-call-parser": parser},
            "readiness": {"rungs": ["tool_call"]},
        },
    )


def play(text: str) -> SimpleNamespace:
    """A server that answers every message with a text."""
    message = {"role": "assistant", "content": text}
    body = json.dumps({"model": "m", "choices": [{"message": message}]})
    session = SimpleNamespace(http=lambda *_args, **_more: Answer(200, body))
    return SimpleNamespace(
        head=SimpleNamespace(name="spark1"),
        session=lambda _node: session,
        bus=SimpleNamespace(emit=lambda _event: None),
    )


def failure(model: str, parser: str) -> VerificationFailed:
    with pytest.raises(VerificationFailed) as caught:
        readiness_checks.run_all(
            play('<|tool_call>call:get_weather{city:"Paris"}'),
            server_for(recipe(model, parser), Node("spark1")),
        )
    return caught.value


def test_a_rung_names_the_issue_that_the_recipe_has():
    error = failure("google/gemma-4-31B-it", "pythonic")
    assert "the call stays in the text" in error.message
    assert "gemma4-pythonic-parser" in error.hint
    assert error.hint.endswith("--tool-call-parser gemma4")


def test_and_none_that_it_has_not():
    assert "known:" not in failure("google/gemma-4-31B-it", "gemma4").hint
    assert "known:" not in failure("org/other", "pythonic").hint


def test_a_rung_looks_for_issues_of_the_size_that_runs(monkeypatch):
    """A recipe for 1 to 2 nodes that fails on two may have an issue of several nodes."""

    asked = []
    monkeypatch.setattr(rules, "live", lambda *, rungs, launch: asked.append(launch.tp) or [])
    chosen = recipe("google/gemma-4-31B-it", "gemma4")
    sizes = chosen.tensor_parallel.model_copy(update={"min": 1, "max": 2})
    chosen = chosen.model_copy(update={"tensor_parallel": sizes})
    with pytest.raises(VerificationFailed):
        readiness_checks.run_all(
            play("no tool"), server_for(chosen, Node("a"), Node("b", is_head=False))
        )
    assert asked == [2]


def test_status_names_the_issue_of_a_server_that_does_not_stay_up():
    log = "2026-11-20T14:12:18.9Z RuntimeError: No CUDA GPUs are available\n"
    done = SimpleNamespace(status=0, stdout=log, stderr="")
    said = state._restarted(SimpleNamespace(run=lambda _argv: done), "spark1", 3)
    assert "restarted 3 times" in said
    assert "No CUDA GPUs are available" in said
    assert "gpu-dead" in said
    assert "--gpus all" in said


def test_a_node_without_memory_figures_is_no_reason_for_an_alarm():
    from spark_cluster.config.launch import Launch
    from spark_cluster.issues.rules import lint

    launch = Launch("org/m", args={"gpu-memory-utilization": 0.8})
    assert lint(launch, facts=[Facts(memory=Memory())]) == []
