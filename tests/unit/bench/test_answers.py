"""Judging answers, and pictures that are what their questions say."""

import base64
import io
import json
from itertools import pairwise
from typing import Any

import pytest
from cases import each_case, each_row
from PIL import Image

from spark_cluster.engine.tool_checks import CATALOGUE, picture_url, why_wrong

QUESTIONS = {one.id: one for listed in CATALOGUE.values() for one in listed}


@each_case(__file__, "right_answers.json")
def test_right(case):
    assert why_wrong(QUESTIONS[case["question"]], case["messages"]) == ""


@each_case(__file__, "wrong_answers.json")
def test_wrong(case):
    assert case["why"] in why_wrong(QUESTIONS[case["question"]], case["messages"])


@pytest.mark.parametrize(
    "told",
    [None, [], "text", {"tool_calls": "x"}, {"tool_calls": [None, 7]}, {"content": 5},
     {"tool_calls": [{"function": {"name": 1, "arguments": []}}]}],
)  # fmt: skip
def test_what_no_server_should_send(told):
    for question in QUESTIONS.values():
        assert why_wrong(question, [told]) != ""
        assert why_wrong(question, []) != ""


def test_questions_have_names_and_tools_of_their_own():
    assert len(QUESTIONS) == sum(len(listed) for listed in CATALOGUE.values())
    for question in QUESTIONS.values():
        assert set(question.results) | {call.name for call in question.calls} <= set(question.tools)
        assert question.words or question.calls
        sent = json.loads(json.dumps(question.to_dict()))
        assert [tool["function"]["name"] for tool in sent["tools"]] == list(question.tools)


def colour_at(url: str, x: int, y: int) -> Any:
    data = base64.b64decode(url.removeprefix("data:image/png;base64,"))
    return Image.open(io.BytesIO(data)).convert("RGB").getpixel((x, y))


BLACK, WHITE = (0, 0, 0), (255, 255, 255)


@each_row(__file__, "pictures.json", "points")
def test_pictures_show_what_they_are_asked_about(picture, x, y, colour):
    assert list(colour_at(picture_url(picture), x, y)) == colour


def test_three_squares_are_to_be_counted():
    line = [colour_at(picture_url("squares"), x, 168) for x in range(0, 336, 12)]
    changes = [b for a, b in pairwise(line) if a != b]
    assert changes == [BLACK, WHITE] * 3


def test_digits_are_those_of_a_display():
    """Bars of the digits: 4 lacks the top one, 0 the middle one, 7 all but the right side."""
    url, size, top = picture_url("number"), 70, 98
    lit = {}
    for place, digit in enumerate("407"):
        left = 30 + 98 * place
        spots = {
            "a": (size // 2, 3), "g": (size // 2, size), "d": (size // 2, 2 * size - 3),
            "f": (3, size // 2), "b": (size - 3, size // 2), "e": (3, size + size // 2),
        }  # fmt: skip
        lit[digit] = "".join(
            name for name, (x, y) in sorted(spots.items())
            if colour_at(url, left + x, top + y) == BLACK
        )  # fmt: skip
    assert lit == {"4": "bfg", "0": "abdef", "7": "ab"}
