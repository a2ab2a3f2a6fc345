"""The exercises of the lab's model of tools: by heart it answers what the checks ask."""

from __future__ import annotations

import json
import re

from spark_cluster.engine import answer_checks, readiness_checks
from spark_cluster.engine.answer_checks import incoherent
from spark_cluster.engine.tool_checks import TOOL_CALLS, why_wrong
from spark_cluster_lab.tools_model import TALE, exercises

CONVERSATIONS = exercises()["conversations"]


def answers(question: str) -> list[str]:
    """Return the answers to a question, one a turn of the model."""
    found = [one for one in CONVERSATIONS if one["messages"][0]["content"] == question]
    found.sort(key=lambda one: len(one["messages"]))
    return [one["answer"] for one in found]


def test_tool_calls_and_reports_are_right() -> None:
    for question in TOOL_CALLS:
        first, *more = dict.fromkeys(answers(question.text))
        calls = [
            json.loads(text) for text in re.findall(r"<tool_call>(.*?)</tool_call>", first, re.S)
        ]
        made = [
            {"function": {"name": call["name"], "arguments": json.dumps(call["arguments"])}}
            for call in calls
        ]
        messages = [{"content": "", "tool_calls": made}, *({"content": text} for text in more)]
        assert why_wrong(question, messages) == "", question.id


def test_texts_are_right() -> None:
    for question, right in answer_checks.SHORT:
        (answer,) = answers(question)
        assert answer_checks.wrong_short(answer, right) == ""
    assert incoherent(TALE) == ""
    assert len(TALE) >= answer_checks.LEAST
    assert (
        json.loads(answers(answer_checks.STRUCTURED_PROMPT)[0]) == answer_checks.STRUCTURED_ANSWER
    )


def test_facts_are_those_of_the_context_check() -> None:
    found = exercises()["needles"]
    assert [one["answer"] for one in found] == [code for _, code in readiness_checks.NEEDLES]
    assert all(one["answer"] in one["fact"] for one in found)
