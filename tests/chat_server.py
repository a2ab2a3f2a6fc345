"""A chat server over real HTTP that answers every check rightly, and wrongly where it is told to.

It speaks vLLM's formats, whole and streamed; `change` gets each request and its right answer and
returns the answer that is sent.
"""

import copy
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from web_server import Answer, Asked, WebServer

from spark_cluster.engine import answer_checks, readiness_checks, tool_checks
from spark_cluster.engine.answer_checks import Client
from spark_cluster.engine.deployment import Endpoint
from spark_cluster.runner.session import Session

MODEL = "gemma"
STORY = (
    "The keeper of the light had lived on the rock for thirty years, and he knew each of its "
    "winds by name. When the glass fell that evening he carried more oil up the stairs than he "
    "would need, trimmed the wick twice, and wrote the hour into his book. By midnight the sea "
    "stood as high as the gallery. A ship showed once, far out, like somebody striking a match "
    "in another room; he turned the lens by hand then, because the clockwork could not be heard "
    "any more, and went on turning it until his arms belonged to someone else. In the grey of the "
    "morning a boat came under the lee, and eleven people who had never seen him waved."
)
SCENES = {"colour": "Red.", "scene": "A red house, a tree and the sun in a blue sky."}
QUESTIONS = {one.text: one for one in (*tool_checks.TOOL_CALLS, *tool_checks.VISION)}


@dataclass
class Reply:
    """An answer of the model, before it is written as a whole or as a stream."""

    content: str | None = ""
    reasoning: str | None = None
    calls: list[tuple[str, str]] = field(default_factory=list)
    model: str = MODEL
    tokens: list[tuple[str, float]] = field(default_factory=list)
    prompt_tokens: int = 20


Change = Callable[[dict[str, Any], Reply], Reply | None]


class ChatServer:
    """A server of one model.

    Args:
        session: of the node from which `client` asks.

    Attributes:
        change: alters an answer in place or returns another one; None leaves it.
        raw: status and body of every answer, instead.
        refuse: status and message for requests for which it returns them.
        cut: streams end before `[DONE]`.
        asked: the requests for completions.
        context: the most tokens of a prompt and its answer.
        context_stated: in the list of models, when that is not the same; None leaves it out.
        health: status of /health.
        listed: the names in the list of models.
        when_asked: is called for each question of /health or the list, before its answer.
    """

    def __init__(self, port: int = 0, session: Session | None = None) -> None:
        self.session = session
        self.change: Change = lambda _request, _reply: None
        self.raw: tuple[int, str] | None = None
        self.refuse: Callable[[dict[str, Any]], tuple[int, str] | None] = lambda _request: None
        self.cut = False
        self.delay_s = 0.0
        self.context = 4096
        self.context_stated: int | None = -1
        self.health = 200
        self.listed: tuple[str, ...] = (MODEL,)
        self.when_asked: Callable[[], object] = lambda: None
        self.asked: list[tuple[dict[str, Any], dict[str, str]]] = []
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self.http = WebServer(self._reply, port)

    def close(self) -> None:
        self._closed.set()
        self.http.close()

    def _reply(self, asked: Asked) -> Answer:
        if asked.method == "POST":
            self.asked.append((asked.document, dict(asked.headers)))
            return self.answer(asked.document)
        stated = self.context if self.context_stated == -1 else self.context_stated
        rows = [{"id": name, "max_model_len": stated} for name in self.listed]
        self.when_asked()
        if asked.path == "/v1/models":
            return 200, {"data": rows}
        return self.health if asked.path == "/health" else 200, ""

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint("127.0.0.1", self.http.server_port, MODEL, "hunter2")

    def client(self, **known: Any) -> Client:
        assert self.session is not None
        given = {"own_question": lambda: "Paris", **known}
        return Client(self.session, self.endpoint, "spark1", **given)

    def answer(self, request: dict[str, Any]) -> tuple[int, str]:
        """Status and body for a request."""
        self._closed.wait(self.delay_s)
        if self.raw is not None:
            return self.raw
        refused = self.refuse(request)
        if refused is not None:
            return refused[0], json.dumps({"error": {"message": refused[1], "code": refused[0]}})
        reply = right(request)
        if reply.prompt_tokens + request["max_tokens"] > self.context:
            return 400, json.dumps({"error": {"message": "maximum context length", "code": 400}})
        with self._lock:
            reply = self.change(request, reply) or reply
        if not request.get("stream"):
            return 200, whole(reply)
        body = "".join(stream(reply))
        return 200, body.partition("data: [DONE]")[0] if self.cut else body


def text_of(request: dict[str, Any]) -> str:
    """Return the text of the user's message."""
    content = next(m["content"] for m in request["messages"] if m["role"] == "user")
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content)


def right(request: dict[str, Any]) -> Reply:
    """Return the right answer to a request of a check."""
    asked = text_of(request)
    question = QUESTIONS.get(asked)
    if question is not None:
        return _right_answer(question, request)
    tokens = max(20, len(asked) // 4)
    if asked.endswith(readiness_checks.QUESTION):
        found = re.findall(r"The code of the archive is (\d+)", asked)
        return Reply("".join(found), prompt_tokens=tokens)
    if asked == readiness_checks.LOGPROBS_PROMPT:
        return Reply("Monday, Tuesday", tokens=[("Monday", -0.01), (",", -0.2), ("Tuesday", -0.1)])
    if "response_format" in request:
        return Reply(json.dumps(answer_checks.STRUCTURED_ANSWER))
    asked = asked.rpartition("\n")[2]
    if asked == answer_checks.RIDDLE:
        return Reply("Five cents.", reasoning="Let the ball cost x; then 2x + 1 = 1.10.")
    short = dict(answer_checks.SHORT)
    if asked in short:
        return Reply(short[asked][0].capitalize() + ".")
    return Reply(STORY)


def _right_answer(question: tool_checks.ExactQuestion, request: dict[str, Any]) -> Reply:
    if not question.tools:
        return Reply(SCENES[question.id])
    results = [m["content"] for m in request["messages"] if m["role"] == "tool"]
    if results:
        return Reply(f"It is 17 degrees with drizzle, and the time is 21:40 ({len(results)}).")
    calls = [(call.name, json.dumps(dict(call.arguments))) for call in question.calls]
    return Reply(None, calls=calls)


def whole(reply: Reply) -> str:
    """Write an answer as one document."""
    message: dict[str, Any] = {"role": "assistant", "content": reply.content}
    message["reasoning"] = reply.reasoning
    message["tool_calls"] = [_call(at, *call) for at, call in enumerate(reply.calls)]
    finish = "tool_calls" if reply.calls else "stop"
    choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": finish}
    if reply.tokens:
        rows = [{"token": token, "logprob": value} for token, value in reply.tokens]
        choice["logprobs"] = {"content": rows}
    usage = {"prompt_tokens": reply.prompt_tokens, "completion_tokens": 5}
    return json.dumps({"model": reply.model, "choices": [choice], "usage": usage})


def _call(at: int, name: str, arguments: str) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"id": f"c{at}", "type": "function", "function": function}


def stream(reply: Reply) -> Iterator[str]:
    """Write an answer as server-sent events, in small pieces."""
    deltas: list[dict[str, Any]] = [{"role": "assistant", "content": ""}]
    deltas += [{"reasoning": piece} for piece in _pieces(reply.reasoning or "")]
    deltas += [{"content": piece} for piece in _pieces(reply.content or "")]
    for at, (name, arguments) in enumerate(reply.calls):
        first = _call(at, name, "")
        deltas.append({"tool_calls": [{"index": at, **first}]})
        for piece in _pieces(arguments):
            deltas.append({"tool_calls": [{"index": at, "function": {"arguments": piece}}]})
    deltas.append({})
    for delta in deltas:
        finish = ("tool_calls" if reply.calls else "stop") if not delta else None
        choice = {"index": 0, "delta": copy.deepcopy(delta), "finish_reason": finish}
        yield f"data: {json.dumps({'model': reply.model, 'choices': [choice]})}\n\n"
    usage = {"prompt_tokens": reply.prompt_tokens, "completion_tokens": 5}
    yield f"data: {json.dumps({'model': reply.model, 'choices': [], 'usage': usage})}\n\n"
    yield "data: [DONE]\n\n"


def _pieces(text: str, size: int = 5) -> list[str]:
    return [text[at : at + size] for at in range(0, len(text), size)]
