"""The rungs of a recipe in their order, and the judgement of texts and pictures."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from chat_server import STORY, ChatServer, Reply
from fake_cluster import FakeCluster
from hypothesis import given
from hypothesis import strategies as st
from serve_plans import recipe_of, server_for

from spark_cluster.engine import readiness_checks
from spark_cluster.engine.answer_checks import incoherent
from spark_cluster.errors import VerificationFailed
from spark_cluster.node import replies
from spark_cluster.node.containers import parse_state

Climb = Callable[..., str]


@pytest.fixture
def climb(server: ChatServer, one_node: FakeCluster) -> Climb:
    """`climb(*names)`: make these checks of the server, from a node."""

    def climb(*names: str) -> str:
        recipe = recipe_of("org/gemma", "gemma", readiness={"rungs": list(names)})
        made = replace(server_for(recipe, one_node.play.head), endpoint=server.endpoint)
        return readiness_checks.run_all(one_node.play, made)

    return climb


def test_rungs_in_their_order(server: ChatServer, climb: Climb) -> None:
    assert climb("vision", "answer", "tool_call") == "Paris."
    kinds = [isinstance(request["messages"][0]["content"], list) for request, _ in server.asked]
    assert kinds == [True, True, False, False, False]
    assert ["tools" in request for request, _ in server.asked[-2:]] == [True, True]


def test_a_rung_fails_at_its_first_check(server: ChatServer, climb: Climb) -> None:
    server.change = lambda _request, _reply: Reply("no")
    with pytest.raises(VerificationFailed, match="the tool was not called"):
        climb("tool_call", "answer")
    assert len(server.asked) == 1


def test_a_rung_that_is_promised_must_hold(server: ChatServer, climb: Climb) -> None:
    server.refuse = lambda _request: (400, "gemma is not a multimodal model")
    with pytest.raises(VerificationFailed, match="is not a multimodal model"):
        climb("vision")


@given(st.recursive(st.none() | st.integers() | st.text(max_size=5), st.lists, max_leaves=5))
def test_odd_documents_have_a_reading(document: Any) -> None:
    body = json.dumps(document)
    replies.error(body)
    parse_state(body)


# -- judging -----------------------------------------------------------------------------------

MONTHS = "\n".join(f"{n}. The month number {n}, with what grows in it." for n in range(1, 10))
CHINESE = "灯塔的看守人在岩石上住了三十年。他叫得出每一阵风的名字。他多带了一桶油上楼。"
SOUND = [STORY, STORY[:90], "Paris", "2 + 2 = 4, and 3 * 3 = 9.", CHINESE, MONTHS]
UNSOUND = ["", " \n", "!" * 50, "<pad>" * 80, "the " * 100, "0.0 1.1 " * 40, STORY + " again" * 150]


@pytest.mark.parametrize(
    ("text", "sound"), [*((one, True) for one in SOUND), *((one, False) for one in UNSOUND)]
)
def test_which_texts_are_sound(text, sound):
    assert (incoherent(text) == "") is sound


@given(st.text(min_size=1, max_size=60), st.integers(30, 60))
def test_a_loop_is_found_whatever_it_says(piece, times):
    assert incoherent(piece * times) or len(piece * times) < 3 * 16
