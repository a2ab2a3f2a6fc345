"""Whether an answer to a question with one right answer is right: its tool calls, and its words."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from spark_cluster.engine.checks.questions import Call, Question
from spark_cluster.node.replies import at, decoded, short, text_of


def why_wrong(question: Question, messages: Sequence[Any]) -> str:
    """Return why an answer is not right; empty when it is.

    Args:
        messages: of the model, one a request.
    """
    calls = [call for one in messages for call in _calls(one)]
    text = text_of(at(messages[-1], "content")) if messages else ""
    return _wrong_calls(question, calls, text) or _wrong_words(question, text)


def _calls(message: Any) -> list[Any]:
    found = at(message, "tool_calls")
    return [at(call, "function") for call in found] if isinstance(found, list) else []


def _wrong_calls(question: Question, calls: Sequence[Any], text: str) -> str:
    if question.tools and not calls:
        text_part = f'; it says "{short(text)}"' if text.strip() else ""
        return f"no tool was called{text_part}"
    left = list(calls)
    for expected in question.calls:
        match = next((call for call in left if _fits(expected, call)), None)
        if match is None:
            made = ", ".join(_shown(call) for call in calls)
            wanted = f"{expected.name}({json.dumps(dict(expected.arguments))})"
            return short(f"called was {made}; expected {wanted}")
        left.remove(match)
    if left:
        return short(f"called too much: {', '.join(_shown(call) for call in left)}")
    return ""


def _shown(call: Any) -> str:
    return f"{text_of(at(call, 'name'))}({text_of(at(call, 'arguments'))})"


def _fits(expected: Call, call: Any) -> bool:
    if at(call, "name") != expected.name:
        return False
    given = decoded(text_of(at(call, "arguments")))
    if not isinstance(given, dict):
        return False
    return all(
        _same(value, given.get(name), exact=expected.exact)
        for name, value in expected.arguments.items()
    )


def _same(expected: str | int | float, given: object, *, exact: bool) -> bool:
    if isinstance(expected, str):
        if not isinstance(given, str):
            return False
        if exact:
            return given == expected
        return given.partition(",")[0].strip().casefold() == expected.casefold()
    is_number = isinstance(given, int | float) and not isinstance(given, bool)
    return is_number and given == expected


def _wrong_words(question: Question, text: str) -> str:
    missing = [group[0] for group in question.words if not any(_has(text, w) for w in group)]
    if missing:
        return f'"{short(text)}" has no {missing[0]}' if text.strip() else "the answer is empty"
    there = [word for word in question.never if _has(text, word)]
    return f'"{short(text)}" has {there[0]} too' if there else ""


UNITS = ("C", "h", "hrs", "am", "pm")
"""Units that follow a number without a space, such as `17C` and `9:40pm`."""


def _has(text: str, word: str) -> bool:
    """Return True when a text has a word, or a number with its unit; 17 is no part of 17.5."""
    before, after = r"(?<!\w)", r"(?!\w)"
    if word[-1].isdigit():
        before += r"(?<!\d[.,])"
        after = rf"(?![.,]\d)(?=(?:{'|'.join(UNITS)})?(?!\w))"
    return re.search(before + re.escape(word) + after, text, re.IGNORECASE) is not None
