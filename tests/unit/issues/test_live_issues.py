"""A live server that fails is told with the known issues that its recipe has."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
from serve_plans import recipe_of, server_for

from spark_cluster.config.topology import Node
from spark_cluster.engine import readiness_checks
from spark_cluster.errors import VerificationFailed
from spark_cluster.runner.session import Answer


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
    args = {"enable-auto-tool-choice": True, "tool-call-parser": parser}
    recipe = recipe_of(model, engine_args=args, readiness={"rungs": ["tool_call"]})
    said = '<|tool_call>call:get_weather{city:"Paris"}'
    with pytest.raises(VerificationFailed) as caught:
        readiness_checks.run_all(play(said), server_for(recipe, Node("spark1")))
    return caught.value


def test_a_rung_names_the_issue_that_the_recipe_has():
    error = failure("google/gemma-4-31B-it", "pythonic")
    assert "the call stays in the text" in error.message
    assert "gemma4-pythonic-parser" in error.hint
    assert error.hint.endswith("--tool-call-parser gemma4")


def test_and_none_that_it_has_not():
    assert "known:" not in failure("google/gemma-4-31B-it", "gemma4").hint
    assert "known:" not in failure("org/other", "pythonic").hint
