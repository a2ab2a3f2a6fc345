"""Judging answers, and pictures that are what their questions say."""

from __future__ import annotations

import base64
import json
import struct
import zlib
from itertools import pairwise
from typing import Any

import pytest

from spark_cluster.engine.tool_checks import CATALOGUE, picture_url, why_wrong

QUESTIONS = {one.id: one for listed in CATALOGUE.values() for one in listed}


def message(text: str = "", *calls: tuple[str, Any]) -> dict[str, Any]:
    made = [
        {"function": {"name": n, "arguments": a if isinstance(a, str) else json.dumps(a)}}
        for n, a in calls
    ]
    return {"content": text, "tool_calls": made}


PARIS, TOKYO = ("get_weather", {"city": "Paris"}), ("get_time", {"city": "Tokyo"})
HTML = str(QUESTIONS["markup-streamed"].calls[0].arguments["content"])
MONEY = {"amount": 20, "from": "eur", "to": "USD"}


@pytest.mark.parametrize(
    ("question", "messages"),
    [
        ("colour", [message("**Red**.")]),
        ("shape", [message("A disc")]),
        ("number", [message("The number is 407.")]),
        ("scene", [message("A home with a tree; the sun is up.")]),
        ("one", [message("Let me look.", PARIS)]),
        ("two-at-once", [message("", TOKYO, PARIS)]),
        ("one-of-three", [message("", ("convert_currency", {**MONEY, "amount": 20.0}))]),
        ("steps", [message("", PARIS), message("17 °C, with some drizzle")]),
        ("steps", [message("", PARIS), message("17C and drizzle.")]),
        ("loop-streamed", [message("", PARIS), message("", TOKYO), message("17 °C; 9:40 pm")]),
        ("loop-streamed", [message("", PARIS), message("", TOKYO), message("17°C, 9:40pm")]),
        ("markup-streamed", [message("", ("write_file", {"path": "page.html", "content": HTML}))]),
    ],
)
def test_right(question, messages):
    assert why_wrong(QUESTIONS[question], messages) == ""


@pytest.mark.parametrize(
    ("question", "messages", "why"),
    [
        ("colour", [message("Red, green or blue")], "has green too"),
        ("colour", [message("coloured")], "has no red"),
        ("colour", [message("")], "the answer is empty"),
        ("number", [message("4070")], "has no 407"),
        ("scene", [message("A house with a tree")], "has no sun"),
        ("one", [message("It rains in Paris")], 'no tool was called; it says "It rains'),
        ("one", [message('<|tool_call>call:get_weather{"city": "Paris"}')], "no tool was called"),
        ("one", [message("", ("get_weather", '{"city": "Par'))], 'expected get_weather({"city":'),
        ("one", [message("", ("get_weather", {"city": "London"}))], "London"),
        ("one", [message("", PARIS, PARIS)], "called too much"),
        ("two-at-once", [message("", PARIS)], "expected get_time"),
        ("one-of-three", [message("", TOKYO)], "expected convert_currency"),
        ("one-of-three", [message("", ("convert_currency", {**MONEY, "amount": "20"}))],
         "expected convert_currency"),
        ("steps", [message("", PARIS), message("It is nice")], "has no 17"),
        ("steps", [message("", PARIS), message("17.5 degrees, drizzle")], "has no 17"),
        ("steps", [message("", PARIS), message("the 17th, drizzle")], "has no 17"),
        ("number", [message("407B")], "has no 407"),
        ("markup-streamed",
         [message("", ("write_file", {"path": "page.html", "content": f"<{HTML}"}))], "expected"),
    ],
)  # fmt: skip
def test_wrong(question, messages, why):
    assert why in why_wrong(QUESTIONS[question], messages)


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


def pixels(url: str) -> tuple[int, int, bytes]:
    """Width, height and pixels of a picture, by the PNG specification."""
    data = base64.b64decode(url.removeprefix("data:image/png;base64,"))
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    at, chunks = 8, {}
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        name, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        (check,) = struct.unpack(">I", data[at + 8 + size : at + 12 + size])
        assert check == zlib.crc32(name + body)
        chunks[name] = body
        at += 12 + size
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    lines = zlib.decompress(chunks[b"IDAT"])
    step = 1 + 3 * width
    assert len(lines) == step * height
    rows = [lines[n * step : (n + 1) * step] for n in range(height)]
    assert {row[0] for row in rows} == {0}
    return width, height, b"".join(row[1:] for row in rows)


def colour_at(url: str, x: int, y: int) -> tuple[int, ...]:
    width, _, found = pixels(url)
    return tuple(found[3 * (y * width + x) : 3 * (y * width + x) + 3])


SIDE = 336
WHITE, BLACK, YELLOW = (255, 255, 255), (0, 0, 0), (255, 220, 0)
RED, GREEN, BLUE = (220, 20, 30), (20, 150, 50), (30, 60, 220)


def test_pictures_show_what_they_are_asked_about():
    middle = SIDE // 2
    assert colour_at(picture_url("red"), 5, 300) == RED
    assert colour_at(picture_url("circle"), middle, middle) == BLUE
    assert colour_at(picture_url("circle"), 5, 5) == WHITE
    line = [colour_at(picture_url("squares"), x, middle) for x in range(0, SIDE, 12)]
    changes = [b for a, b in pairwise(line) if a != b]
    assert changes == [BLACK, WHITE] * 3
    assert colour_at(picture_url("sides"), 80, middle) == GREEN
    assert colour_at(picture_url("sides"), 250, middle) == RED
    assert colour_at(picture_url("house"), 280, 55) == YELLOW


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
