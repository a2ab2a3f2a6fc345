"""The rungs, asked over real HTTP from a server that answers well or badly in each way seen."""

from __future__ import annotations

import base64
import json
import struct
import threading
import zlib
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spark_cluster.config.recipe_schema import Probe
from spark_cluster.errors import VerificationFailed
from spark_cluster.inference import replies
from spark_cluster.inference.containers import parse_state
from spark_cluster.node.http import ask
from spark_cluster.runner.session import Answer
from spark_cluster.serving import readiness, rungs
from spark_cluster.serving.endpoint import Endpoint
from spark_cluster.serving.text_checks import incoherent, red_square

PROBE = Probe(question="What is the capital of France?", expect="Paris")
STORY = (
    "The keeper of the light had lived on the rock for thirty years, and he knew each of its "
    "winds by name. When the glass fell that evening he carried more oil up the stairs than he "
    "would need, trimmed the wick twice, and wrote the hour into his book. By midnight the sea "
    "stood as high as the gallery. A ship showed once, far out, like somebody striking a match "
    "in another room; he turned the lens by hand then, because the clockwork could not be heard "
    "any more, and went on turning it until his arms belonged to someone else. In the grey of the "
    "morning a boat came under the lee, and eleven people who had never seen him waved."
)
GOOD_CALL = {"id": "c1", "type": "function",
             "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}  # fmt: skip
GEMMA = '<|tool_call>call:get_weather{city:<|"|>Paris<|"|>}<tool_call|>'


def message(content=None, *, model="gemma", **more):
    return json.dumps({"model": model, "choices": [{"message": {"content": content, **more}}]})


def stream(*deltas):
    events = [f"data: {json.dumps({'choices': [{'delta': delta}]})}\n\n" for delta in deltas]
    usage = f"data: {json.dumps({'choices': [], 'usage': {}})}\n\n"
    return "".join([*events, usage, "data: [DONE]\n\n"])


def streamed_call(*pieces, name="get_weather"):
    """A call whose arguments come in pieces, as vLLM streams them."""
    first = {"index": 0, "id": "c1", "function": {"name": name, "arguments": ""}}
    parts = [{"index": 0, "function": {"arguments": piece}} for piece in pieces]
    return stream({"role": "assistant"}, *({"tool_calls": [part]} for part in (first, *parts)))


GOOD = {
    "coherence": message(STORY),
    "tool_call": message(None, tool_calls=[GOOD_CALL]),
    "stream": streamed_call('{"ci', 'ty": "Pa', 'ris"}'),
    "reasoning": message("Five cents.", reasoning="Let the ball cost x."),
    "vision": message("Red."),
}


class Server:
    """A server of one model; `says` is what it answers to each kind of request."""

    def __init__(self):
        self.says = dict(GOOD)
        self.status = 200
        self.asked = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.asked.append((request, dict(self.headers)))
                body = outer.says[kind(request)].encode()
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_args):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()

    def climb(self, rung):
        rungs.RUNGS[rung](self.client)

    @property
    def client(self):
        endpoint = Endpoint("127.0.0.1", self.http.server_port, "gemma", "hunter2")
        return rungs.Client(Node(), endpoint, "spark1")


class Node:
    """Asks as an agent does."""

    def http(self, url, **request):
        reply = ask({"url": url, **request})
        return Answer(reply["status"], reply["body"], reply.get("reason", ""))


def kind(request):
    if "tools" in request:
        return "stream" if request.get("stream") else "tool_call"
    if "chat_template_kwargs" in request:
        return "reasoning"
    return "vision" if isinstance(request["messages"][0]["content"], list) else "coherence"


@pytest.fixture
def server():
    made = Server()
    yield made
    made.http.shutdown()
    made.http.server_close()


@pytest.mark.parametrize("rung", rungs.RUNGS)
def test_good_answers(server, rung):
    server.climb(rung)
    request, headers = server.asked[0]
    assert request["temperature"] == 0, "greedy, or the verdict would change from run to run"
    assert request["model"] == "gemma"
    assert headers["Authorization"] == "Bearer hunter2"


def test_what_is_asked(server):
    server.climb("coherence")
    assert server.asked[-1][0]["max_tokens"] == 400
    server.climb("tool_call")
    assert [bool(request.get("stream")) for request, _ in server.asked[-2:]] == [False, True]
    assert all(request["tool_choice"] == "auto" for request, _ in server.asked[-2:])
    server.climb("reasoning")
    assert server.asked[-1][0]["skip_special_tokens"] is False
    server.climb("vision")
    url = server.asked[-1][0]["messages"][0]["content"][0]["image_url"]["url"]
    assert url.startswith("data:image/png;base64,")


NO_CITY = {"function": {"name": "get_weather", "arguments": "{}"}}
CUT = {"function": {"name": "get_weather", "arguments": '{"city": "Par'}}
WRONG = [
    ("coherence", message("!" * 400), "only 0% of it are letters: '!!!!", "kv-cache-dtype"),
    ("coherence", message(STORY[:300] + "and so it was. " * 80), "it repeats itself", "marlin"),
    ("coherence", message(""), "the reply is empty", "NaN"),
    ("coherence", message("Paris"), "it is much too short: 'Paris'", "NaN"),
    ("coherence", message(STORY, model="qwen"), "'qwen' answered, asked was 'gemma'", "router"),
    ("coherence", "<html>proxy</html>", "reply is not a chat completion: <html>", "uses the port"),
    ("coherence", '{"choices": []}', "is not a chat completion", "uses the port"),
    ("tool_call", message(GEMMA), "the call stays in the text: '<|tool_call>", "gemma4"),
    ("tool_call", message("call:get_weather{city:Paris}"), "stays in the text", "gemma4"),
    ("tool_call", message("It is sunny."), "the tool was not called", "tool-call-parser"),
    ("tool_call", message("", tool_calls=[]), "the tool was not called", "41967"),
    ("tool_call", message(None, tool_calls=[NO_CITY]), 'expected get_weather({"city"', "41967"),
    ("tool_call", message(None, tool_calls=[CUT]), 'the call is get_weather({"city": "Par)', ""),
    ("tool_call", message(None, tool_calls="x"), "the tool was not called", ""),
    ("stream", streamed_call('{"city": "Pa', 'ris'), "streamed tool call: the call is", "38946"),
    ("stream", streamed_call('{"city": <|"|>Paris<|"|>}'), "streamed tool call", "38946"),
    ("stream", stream({"content": GEMMA[:9]}, {"content": GEMMA[9:]}), "stays in the text", ""),
    ("stream", stream({"content": "no"}), "streamed tool call: the tool was not called", ""),
    ("stream", "", "the tool was not called", ""),
    ("reasoning", message("Five cents."), "there is no reasoning", "reasoning-parser"),
    ("reasoning", message("thought\nLet x ...", reasoning="x"), "the reasoning is in the text", ""),
    ("reasoning", message("<|channel>thought x", reasoning="x"), "is in the text", "38855"),
    ("vision", message("A black picture."), "a red square was shown", "language-model-only"),
    ("vision", message(None), "a red square was shown", ""),
]  # fmt: skip


@pytest.mark.parametrize(("asked", "body", "text", "hint"), WRONG)
def test_bad_answers(server, asked, body, text, hint):
    server.says[asked] = body
    with pytest.raises(VerificationFailed) as caught:
        server.climb("tool_call" if asked == "stream" else asked)
    assert text in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.hint
    assert caught.value.where == "spark1"


def test_older_servers_say_reasoning_content(server):
    server.says["reasoning"] = message("Five cents.", reasoning_content="Let x be")
    server.climb("reasoning")
    server.says["coherence"] = message(None, reasoning_content=STORY)
    server.climb("coherence")


def test_a_server_without_the_parser_flags(server):
    """vLLM refuses such a request, and a router in front of it would ask another model."""
    server.status = 400
    server.says["tool_call"] = json.dumps(
        {"error": {"message": '"auto" tool choice requires --enable-auto-tool-choice and '
                   "--tool-call-parser to be set", "code": 400}}
    )  # fmt: skip
    with pytest.raises(VerificationFailed, match=r"status 400\): \"auto\" tool choice") as caught:
        server.climb("tool_call")
    assert "router" in caught.value.hint


def test_a_server_that_is_not_there():
    endpoint = Endpoint("127.0.0.1", 1, "gemma")
    with pytest.raises(VerificationFailed, match=r"status 0\): .*refused"):
        rungs.coherence(rungs.Client(Node(), endpoint))


KEYS = ["choices", "message", "delta", "tool_calls", "function", "name", "arguments"]
KEYS += ["content", "reasoning", "index", "model", "error"]
ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=3,
        )
    ),
    max_leaves=12,
)


@st.composite
def odd_replies(draw):
    """A good reply with one part replaced by anything, or anything at all."""
    good = draw(st.sampled_from(list(GOOD.values())))
    lines = good.splitlines() or [""]
    at = draw(st.integers(0, len(lines) - 1))
    try:
        document = json.loads(lines[at].removeprefix("data:"))
    except ValueError:
        document = None
    spot = document
    while isinstance(spot, (dict, list)) and spot:
        key = draw(st.sampled_from(sorted(spot) if isinstance(spot, dict) else range(len(spot))))
        if not isinstance(spot[key], (dict, list)) or draw(st.booleans()):
            spot[key] = draw(ODD)
            break
        spot = spot[key]
    text = json.dumps(document if spot is not None else draw(ODD))
    lines[at] = ("data:" if lines[at].startswith("data:") else "") + text
    return "\n".join(lines) if draw(st.integers(0, 9)) else draw(st.text(max_size=40))


class Says:
    """Answers each request with the same."""

    def __init__(self, body):
        self.body = body

    def http(self, *_args, **_request):
        return Answer(200, self.body)


@given(odd_replies(), st.sampled_from(sorted(rungs.RUNGS)))
def test_any_reply_gets_a_verdict(body, rung):
    client = rungs.Client(Says(body), Endpoint("h", 1, "gemma"))
    try:
        rungs.RUNGS[rung](client)
    except VerificationFailed as error:
        assert error.message.startswith((rung.replace("_", " "), "streamed tool call"))
    replies.streamed(body)
    replies.error(body)
    parse_state(body)
    readiness.ask_once(Says(body), Endpoint("h", 1, "m"), PROBE, timeout=1)


@pytest.mark.parametrize("body", ["[" * 100_000, '{"a":' * 100_000, "9" * 100_000])
def test_deep_and_long_json_is_no_traceback(body):
    for rung in rungs.RUNGS.values():
        with pytest.raises(VerificationFailed):
            rung(rungs.Client(Says(body), Endpoint("h", 1, "gemma")))
    assert replies.streamed("data: " + body) == ([], "")
    call = {"function": {"name": "get_weather", "arguments": body}}
    with pytest.raises(VerificationFailed):
        rungs.tool_call(
            rungs.Client(Says(message(None, tool_calls=[call])), Endpoint("h", 1, "gemma"))
        )


def test_an_error_that_is_no_json(server):
    server.status = 500
    server.says["vision"] = "Internal Server Error"
    with pytest.raises(VerificationFailed, match=r"status 500\): Internal Server Error"):
        server.climb("vision")


# -- judging -----------------------------------------------------------------------------------

NUMBERS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth")


@pytest.mark.parametrize(
    "text",
    [
        STORY,
        STORY[:90],
        "Paris",
        "2 + 2 = 4, and 3 * 3 = 9.",
        "灯塔的看守人在岩石上住了三十年。他叫得出每一阵风的名字。那天傍晚气压下降。他多带了一桶油上楼。",
        "\n".join(f"{n}. The {w} month, with what grows in it." for n, w in enumerate(NUMBERS, 1)),
    ],
)
def test_sound_texts(text):
    assert incoherent(text) == ""


@pytest.mark.parametrize(
    "text",
    ["", " \n", "!" * 50, "<pad>" * 80, "the " * 100, "0.0 1.1 " * 40, STORY + " again" * 150],
)
def test_unsound_texts(text):
    assert incoherent(text)


@given(st.text(min_size=1, max_size=60), st.integers(30, 60))
def test_a_loop_is_found_whatever_it_says(piece, times):
    assert incoherent(piece * times) or len(piece * times) < 3 * 16


@given(st.text(max_size=400))
def test_any_text_gets_a_verdict(text):
    assert isinstance(incoherent(text), str)


def test_the_picture_is_a_red_png():
    data = base64.b64decode(red_square(4).partition(",")[2])
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        kind_, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert struct.unpack(">I", data[at + 8 + size : at + 12 + size])[0] == zlib.crc32(
            kind_ + body
        )
        chunks[kind_] = body
        at += 12 + size
    assert struct.unpack(">IIBB", chunks[b"IHDR"][:10]) == (4, 4, 8, 2)
    assert zlib.decompress(chunks[b"IDAT"]) == (b"\0" + b"\xff\0\0" * 4) * 4
    assert list(chunks)[-1] == b"IEND"
