"""The last rungs of readiness: what a real client does, asked by the head, judged here.

Fluent nonsense, a tool call that stays text, thoughts in the wrong field: `/health` is fine with
all of them, and each has been seen on a Spark.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from spark_cluster.engine.events import Progress
from spark_cluster.engine.play import Play
from spark_cluster.engine.session import Answer
from spark_cluster.errors import VerificationFailed
from spark_cluster.recipe import Recipe
from spark_cluster.serving import readiness
from spark_cluster.serving.endpoint import Endpoint
from spark_cluster.serving.judging import incoherent, red_square

PATIENCE_S = 900.0
"""Seconds for one answer: 1,024 tokens at 7 tok/s are two and a half minutes."""

LEAST = 200
"""Characters of a story that was to have three hundred words; a shorter one proves nothing."""

TOOL = "get_weather"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": TOOL,
            "description": "The weather in a city at this moment.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "name of the city"}},
                "required": ["city"],
            },
        },
    }
]
RAW = ("<|tool_call", "<tool_call", f"call:{TOOL}", f"[{TOOL}(")
"""How calls look when nobody has read them: Gemma's, Qwen's, and Python's."""

PARSER = "--enable-auto-tool-choice and the model's own --tool-call-parser (Gemma 4: gemma4)"


class Asker(Protocol):
    """What makes requests: a node's session."""

    def http(
        self, url: str, *, method: str, headers: dict[str, str], body: str, timeout: float
    ) -> Answer: ...


@dataclass(frozen=True)
class Client:
    """Asks one endpoint.

    Args:
        session: who makes the requests.
        where: whose name errors carry.
    """

    session: Asker
    endpoint: Endpoint
    where: str = ""

    def wrong(self, message: str, hint: str) -> VerificationFailed:
        return VerificationFailed(message, where=self.where, hint=hint)

    def post(self, rung: str, content: Any, **options: Any) -> str:
        """The body of the answer to one message.

        Raises:
            VerificationFailed: the status is not 200.
        """
        asked = {
            "model": self.endpoint.model,
            "messages": [{"role": "user", "content": content}],
            "temperature": 0,
            "max_tokens": 1024,
            **options,
        }
        answer = self.session.http(
            self.endpoint.path("/v1/chat/completions"),
            method="POST",
            headers=self.endpoint.headers,
            body=json.dumps(asked),
            timeout=PATIENCE_S,
        )
        if answer.status == 200:
            return answer.body
        said = answer.reason if answer.status == 0 else _error(answer.body) or answer.reason
        hint = "spark-cluster logs shows more"
        if answer.status == 400 and "tool choice" in said:
            hint = f"the recipe's engine_args lack {PARSER}; a router would now ask another model"
        raise self.wrong(f"{rung}: the request failed (status {answer.status}): {said}", hint)

    def message(self, rung: str, content: Any, **options: Any) -> dict[str, Any]:
        """The message that answers.

        Raises:
            VerificationFailed: there is none, or another model gave it.
        """
        body = self.post(rung, content, **options)
        try:
            whole = json.loads(body)
            found = whole["choices"][0]["message"]
            model = whole["model"]
        except (ValueError, LookupError, TypeError):
            found, model = None, ""
        if not isinstance(found, dict):
            hint = "something else than vLLM has the port"
            raise self.wrong(f"{rung}: this is no completion: {body[:200]}", hint)
        if model != self.endpoint.model:
            raise self.wrong(
                f"{rung}: {model!r} answered, asked was {self.endpoint.model!r}",
                "another server or a router has the port",
            )
        return found


def coherence(client: Client) -> None:
    """400 tokens without falling into a loop or into signs (NaN, FP8 KV cache)."""
    asked = "Tell a story about a lighthouse keeper and a storm, in about three hundred words."
    found = client.message("coherence", asked, max_tokens=400)
    text = f"{_reasoning(found)}\n{found.get('content') or ''}".strip()
    why = incoherent(text) or ("it is much too short" if len(text) < LEAST else "")
    if why:
        raise client.wrong(
            f"coherence: {why}: {_short(text)!r}",
            "kernels that compute NaN say `!!!!`, an FP8 KV cache can make a model repeat itself: "
            "try --moe-backend marlin, or --kv-cache-dtype auto",
        )


def tool_call(client: Client) -> None:
    """A tool that is offered is called, whole and streamed, and its arguments are JSON."""
    asked = "What is the weather in Paris at this moment? Use the tool."
    options = {"tools": TOOLS, "tool_choice": "auto"}
    found = client.message("tool call", asked, **options)
    _call("tool call", client, found.get("tool_calls"), found.get("content"))
    body = client.post("streamed tool call", asked, stream=True, **options)
    calls, content = _streamed(body)
    _call("streamed tool call", client, calls, content)


def reasoning(client: Client) -> None:
    """Thoughts come in a field of their own."""
    found = client.message(
        "reasoning",
        "A bat and a ball cost 1.10 together; the bat costs 1 more than the ball. "
        "What does the ball cost?",
        chat_template_kwargs={"enable_thinking": True},
        skip_special_tokens=False,  # the parser wants to see the delimiters (vLLM 38855)
    )
    content = str(found.get("content") or "").lstrip()
    leaked = content.startswith(("thought\n", "<think>")) or "<|channel" in content
    if leaked or not _reasoning(found).strip():
        what = "the thoughts are in the text" if leaked else "there are no thoughts"
        raise client.wrong(
            f"reasoning: {what}: {_short(content)!r}",
            "--reasoning-parser of this model is missing or wrong (Gemma 4: gemma4; vLLM 38855)",
        )


def vision(client: Client) -> None:
    """A picture is seen."""
    picture = {"type": "image_url", "image_url": {"url": red_square()}}
    question = {"type": "text", "text": "Which colour is this picture? Answer with one word."}
    found = client.message("vision", [picture, question])
    text = str(found.get("content") or "")
    if "red" not in text.lower():
        raise client.wrong(
            f"vision: a red square was shown, the model says {_short(text)!r}",
            "--language-model-only leaves the vision tower out; otherwise it was damaged",
        )


RUNGS: dict[str, Callable[[Client], None]] = {
    "coherence": coherence,
    "tool_call": tool_call,
    "reasoning": reasoning,
    "vision": vision,
}
"""By the recipe's names; `answer` is the recipe's own question (`readiness.ask`)."""


def climb(play: Play, endpoint: Endpoint, recipe: Recipe) -> str:
    """Each rung that the recipe names, in its order; the answer to the recipe's own question.

    Raises:
        VerificationFailed: at the first rung that does not hold.
    """
    answer = ""
    client = Client(play.session(play.head), endpoint, play.head.name)
    for rung in recipe.readiness.rungs:
        play.bus.emit(Progress(play.head.name, "verify", rung.replace("_", " ")))
        try:
            if rung == "answer":
                answer = readiness.ask(play, endpoint, recipe.probe)
            else:
                RUNGS[rung](client)
        except VerificationFailed as error:
            raise _with_known(error, rung, recipe) from None
    return answer


def _with_known(error: VerificationFailed, rung: str, recipe: Recipe) -> VerificationFailed:
    """The error with the known issues of the recipe that this rung shows."""
    from spark_cluster import issues
    from spark_cluster.launch import of_recipe

    launch = of_recipe(recipe, recipe.tensor_parallel.min)
    known = issues.live(rungs={rung: error.message}, launch=launch)
    lines = [f"known: {f.title} ({f.id}): {f.fix}" for f in known]
    hint = "\n  ".join([error.hint, *lines] if error.hint else lines)
    return VerificationFailed(error.message, where=error.where, hint=hint)


def _call(rung: str, client: Client, calls: Any, content: Any) -> None:
    """One call of the tool, with a city, and nothing of it in the text."""
    text = content if isinstance(content, str) else ""
    if any(mark in text for mark in RAW):
        raise client.wrong(
            f"{rung}: the call stays in the text: {_short(text)!r}",
            f"--tool-call-parser is another model's; needed are {PARSER}",
        )
    try:
        name = calls[0]["function"]["name"]
        arguments = calls[0]["function"]["arguments"]
    except (LookupError, TypeError):
        raise client.wrong(
            f"{rung}: the tool was not called; the model says {_short(text)!r}",
            f"needed are {PARSER}; a drafter can drop calls too (vLLM 41967)",
        ) from None
    try:
        city = json.loads(arguments)["city"]
    except (ValueError, LookupError, TypeError):
        city = None
    if name != TOOL or not isinstance(city, str):
        raise client.wrong(
            f'{rung}: the call is {name}({arguments}), expected {TOOL}({{"city": ...}})',
            "early parsers stream invalid JSON (vLLM 38946, mended in 0.19.1); "
            "a drafter can drop arguments (vLLM 41967)",
        )


def _streamed(body: str) -> tuple[list[dict[str, Any]], str]:
    """Calls and text of a stream of server-sent events, put together."""
    calls: dict[int, dict[str, str]] = {}
    content = ""
    for line in body.splitlines():
        try:
            delta = json.loads(line.removeprefix("data:"))["choices"][0]["delta"]
        except (ValueError, LookupError, TypeError):
            continue  # `[DONE]`, an empty line, the usage at the end
        content += delta.get("content") or ""
        for part in delta.get("tool_calls") or ():
            call = calls.setdefault(part.get("index", 0), {"name": "", "arguments": ""})
            for key, value in (part.get("function") or {}).items():
                call[key] = call.get(key, "") + (value or "")
    return [{"function": calls[index]} for index in sorted(calls)], content


def _reasoning(message: dict[str, Any]) -> str:
    """vLLM >= 0.18 says `reasoning`, before that it said `reasoning_content`."""
    return str(message.get("reasoning") or message.get("reasoning_content") or "")


def _error(body: str) -> str:
    """The message of an OpenAI error, or the beginning of what it is."""
    try:
        found = json.loads(body)
        return str(found.get("error", found).get("message") or body[:300])
    except (ValueError, AttributeError):
        return body[:300]


def _short(text: str) -> str:
    return text if len(text) <= 120 else f"{text[:60]} ... {text[-50:]}"
