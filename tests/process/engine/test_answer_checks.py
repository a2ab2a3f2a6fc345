"""Every check over real HTTP: it holds on a server that answers rightly, and fails for a fault."""

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from cases import cases
from chat_server import ChatServer, Reply, text_of
from hostile import odd_json
from hypothesis import given
from hypothesis import strategies as st
from piped_cluster import PipedCluster

from spark_cluster.engine import answer_checks, readiness_checks, tool_checks
from spark_cluster.engine.answer_checks import NotApplicable
from spark_cluster.errors import VerificationFailed
from spark_cluster.node.completions import ChatCompletion, streamed

CHAT = {check.id: check for check in readiness_checks.of_kind("chat")}
ASKING = [check for check in CHAT if check != "answer"]
TOOLS = [check for check in CHAT if check.startswith("tool-")]
HTML = str(tool_checks.TOOL_CALLS[6].calls[0].arguments["content"])


def failed(server: ChatServer, check: str, **known: Any) -> VerificationFailed:
    with pytest.raises(VerificationFailed) as caught:
        CHAT[check].run(server.client(**known))
    assert caught.value.hint, "an error says what to do"
    assert caught.value.where == "spark1"
    return caught.value


@pytest.mark.parametrize("check", CHAT)
def test_a_healthy_server(server, check):
    assert CHAT[check].run(server.client())
    for request, headers in server.asked:
        assert request["temperature"] == 0, "greedy, or the verdict would change from run to run"
        assert request["model"] == "gemma"
        assert headers["Authorization"] == "Bearer hunter2"


def test_every_rung_has_checks_and_every_check_has_an_id_of_its_own():
    assert all(readiness_checks.CHECKS_BY_NAME.values())
    ids = [check.id for rung in readiness_checks.CHECKS_BY_NAME.values() for check in rung]
    assert len(set(ids)) == len(ids)


WRONG = cases(__file__, "wrong_answers.toml")
GROUPS = {
    "asking": ASKING,
    "tools": TOOLS,
    "streamed": [check for check in CHAT if CHAT[check].streamed],
}


@pytest.mark.parametrize(
    ("check", "case"),
    [
        pytest.param(check, case, id=f"{check}: {case['found']}"[:60])
        for case in WRONG["case"]
        for check in (GROUPS.get(str(case["checks"])) or case["checks"])
    ],
)
def test_what_is_wrong_is_found(server, check, case):
    for name, value in case.get("server", {}).items():
        setattr(server, name, value)
    if "reply" in case:
        wrong, when = Reply(**{"content": None, **case["reply"]}), case.get("when", "")
        server.change = lambda asked, reply: (
            replace(wrong) if when in json.dumps(asked["messages"][-1]) else reply
        )
    elif "replies" in case:
        replies = iter([Reply("x", **one) for one in case["replies"]])
        server.change = lambda *_: next(replies)
    elif "altered" in case:
        server.change = lambda _request, reply: replace(reply, **case["altered"])
    elif "refuse" in case:
        server.refuse = lambda _request: (400, case["refuse"])
    known = {name: case[name] for name in ("flags", "patience_s") if name in case}
    error = failed(server, check, **known)
    assert case["found"] in error.message
    assert case.get("hint", "") in error.hint
    assert isinstance(error, NotApplicable) == case.get("not_applicable", False)
    assert len(server.asked) == case.get("asked", len(server.asked))


def test_markup_that_a_streaming_parser_doubles(server):
    def change(_request: dict[str, Any], _reply: Reply) -> Reply:
        content = HTML.replace("<", "<<")
        return Reply(calls=[("write_file", json.dumps({"path": "page.html", "content": content}))])

    server.change = change
    assert "38909" in failed(server, "tool-markup-streamed").hint


def test_what_is_asked(server):
    for check in TOOLS:
        CHAT[check].run(server.client())
    assert all(request["tool_choice"] == "auto" for request, _ in server.asked)
    second = server.asked[[text_of(r) for r, _ in server.asked].index(
        tool_checks.TOOL_CALLS[4].text) + 1][0]  # fmt: skip
    roles = [message["role"] for message in second["messages"]]
    assert roles == ["user", "assistant", "tool"]
    assert second["messages"][2]["tool_call_id"] == second["messages"][1]["tool_calls"][0]["id"]
    CHAT["reasoning"].run(server.client())
    assert server.asked[-1][0]["skip_special_tokens"] is False
    CHAT["vision-scene"].run(server.client())
    url = server.asked[-1][0]["messages"][0]["content"][0]["image_url"]["url"]
    assert url.startswith("data:image/png;base64,")


@pytest.mark.parametrize(("text", "right"), WRONG["short"])
def test_which_short_answers_are_right(text, right):
    assert (answer_checks.wrong_short(text, ("paris",)) == "") is right


def test_a_model_that_reasons_is_asked_to_answer_at_once(server):
    asking = ("short-answers", "structured-output", "context")
    for flags, expected in (
        ({"reasoning-parser": "qwen3"}, {"enable_thinking": False}),
        ({"reasoning-parser": "mistral", "tokenizer-mode": "mistral"}, None),
        ({}, None),
    ):
        for check in asking:
            CHAT[check].run(server.client(flags=flags))
            assert server.asked[-1][0].get("chat_template_kwargs") == expected


def test_an_answer_that_does_not_come_for_reasoning():
    cut = ChatCompletion(reasoning="Let me think", finish="length")
    assert "no answer within 1024 tokens" in answer_checks.wrong_answer(cut, ("paris",))
    assert answer_checks.wrong_answer(ChatCompletion("Paris", finish="stop"), ("paris",)) == ""


# -- any reply gets a verdict ----------------------------------------------------------------------

ODD = odd_json(
    *("choices", "message", "delta", "tool_calls", "function", "name", "arguments", "data", "id"),
    *("content", "reasoning", "index", "model", "error", "logprobs", "token", "logprob", "usage"),
)


@pytest.fixture(scope="module")
def foreign(one_node: PipedCluster) -> Iterator[ChatServer]:
    """A server that answers each request with the same."""
    made = ChatServer(session=one_node.play.session(one_node.play.head))
    yield made
    made.close()


def verdict(foreign: ChatServer, check: str, body: str) -> str:
    foreign.raw = (200, body)
    try:
        return CHAT[check].run(foreign.client())
    except VerificationFailed as error:
        assert error.message
        return error.message


@given(ODD, ODD, st.booleans(), st.sampled_from(ASKING))
def test_any_reply_gets_a_verdict(foreign, part, call, streamed, check):
    key = "delta" if streamed else "message"
    message = {"content": part, "tool_calls": [call], "reasoning": part}
    choice = {key: message, "logprobs": {"content": [part, call]}}
    body = json.dumps({"model": "gemma", "choices": [choice], "usage": part})
    verdict(foreign, check, f"data: {body}\n\ndata: [DONE]\n\n" if streamed else body)
    verdict(foreign, check, json.dumps(part))


@pytest.mark.parametrize("body", ["[" * 100_000, '{"a":' * 100_000, "9" * 100_000])
def test_deep_and_long_json_is_no_traceback(foreign, body):
    for check in ASKING:
        assert "is not a chat completion" in verdict(foreign, check, body) or check == "context"
    call = {"id": "c", "function": {"name": "get_weather", "arguments": body}}
    for check in TOOLS:
        key = "delta" if CHAT[check].streamed else "message"
        reply = json.dumps({"model": "gemma", "choices": [{key: {"tool_calls": [call]}}]})
        sent = f"data: {reply}\n\ndata: [DONE]\n" if CHAT[check].streamed else reply
        assert "expected a JSON object" in verdict(foreign, check, sent)


def test_a_call_with_an_index_beyond_all_reason():
    part = {"index": 10**9, "function": {"name": "x", "arguments": "{}"}}
    event = {"model": "m", "choices": [{"delta": {"tool_calls": [part]}}]}
    found = streamed(f"data: {json.dumps(event)}\n\ndata: [DONE]\n")
    assert len(found.calls) == 1


# -- log-probabilities -----------------------------------------------------------------------------

SAME = [("Monday", -0.01), (",", -0.2), ("Tuesday", -0.1)]


def test_two_tokens_that_are_as_likely_may_change_places():
    assert readiness_checks.unstable(SAME, [*SAME[:2], ("Sunday", -0.3)]) == ""
    assert readiness_checks.unstable(SAME, [(token, value - 0.1) for token, value in SAME]) == ""


# -- several at once -------------------------------------------------------------------------------


def test_requests_are_really_made_at_once(server):
    barrier = threading.Barrier(9, timeout=20)

    def together(_request: dict[str, Any]) -> None:
        barrier.wait()

    server.refuse = together
    assert "9 requests at once" in CHAT["concurrency"].run(server.client())
    assert {bool(request.get("stream")) for request, _ in server.asked} == {True, False}


# -- context ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [1024, 4096, 40_000])
def test_the_whole_context_is_used(server, length):
    server.context = length
    found = CHAT["context"].run(server.client())
    assert f"the server states {length}" in found
    longest = max(len(text_of(request)) // 4 for request, _ in server.asked)
    assert longest > 0.85 * (length - min(1024, length // 4))


def test_a_shorter_context_by_option(server):
    server.context = 100_000
    CHAT["context"].run(server.client(context=2000))
    assert max(len(text_of(request)) // 4 for request, _ in server.asked) < 2000


def test_the_launch_states_the_context_where_the_list_of_models_does_not(server):
    server.context_stated = None
    assert "states 2048" in CHAT["context"].run(server.client(flags={"max-model-len": "2048"}))


@pytest.mark.parametrize(("depth", "code"), readiness_checks.NEEDLES)
def test_a_fact_that_is_lost_at_one_depth(server, depth, code):
    server.change = lambda _request, reply: Reply(
        "I do not know" if reply.content == code else reply.content,
        prompt_tokens=reply.prompt_tokens,
    )
    error = failed(server, "context")
    assert f"the number at {depth:.0%} of" in error.message
    assert "I do not know" in error.message


def test_the_context_of_a_server_that_is_not_there(server):
    server.close()
    assert "refused" in failed(server, "context").message


def test_a_prompt_that_is_cut(server):
    server.change = lambda _request, reply: replace(
        reply, prompt_tokens=min(reply.prompt_tokens, 2000)
    )
    assert "it was cut" in failed(server, "context").message


def test_tokens_that_are_counted_too_low_make_no_endless_prompt(server):
    server.context = 4_000_000
    server.change = lambda _request, reply: replace(
        reply, prompt_tokens=100 + reply.prompt_tokens // 1000
    )
    assert "the server counted 100 tokens for 1 sentence" in failed(server, "context").message
    assert max(len(text_of(request)) for request, _ in server.asked) < 10_000


def test_a_stream_is_cut_at_its_lines_only():
    """JSON may hold the line separators of Unicode, which are no ends of lines here."""
    deltas = ["A", "b\u2028c", "d\x85"]
    events = [{"choices": [{"delta": {"content": text}}]} for text in deltas]
    body = "\n\n".join(f"data: {json.dumps(one, ensure_ascii=False)}" for one in events)
    assert streamed(body).content == "Ab\u2028cd\x85"


@pytest.mark.parametrize("error", [{"code": 500}, "out of memory", {"message": "it died"}])
def test_an_error_within_a_stream_is_none_of_its_answers(error):
    assert streamed(f"data: {json.dumps({'error': error})}\n\ndata: [DONE]\n").error
