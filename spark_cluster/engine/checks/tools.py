"""Tool calls in eight ways, with `tool_choice: auto`, as agents make them.

The ways are those of a published table (source: forum-gemma4-31b-fp8).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from spark_cluster.engine.checks.questions import TOOL_CALLS, VISION, Question, why_wrong
from spark_cluster.engine.client import Check, Client, NotApplicable, RequestFailed
from spark_cluster.node import replies
from spark_cluster.node.bench.completions import ChatCompletion

ROUNDS = 4
"""Most requests of a conversation: the model calls tools, gets their results, and goes on."""

PARSER = "--enable-auto-tool-choice and the model's own --tool-call-parser (Gemma 4: gemma4)"

RAW = ("<|tool_call", "<tool_call", "[TOOL_CALLS]", "<function=", "call:{}", "[{}(", '"name": "{}"')
"""How calls look when they were not parsed: Gemma's, Qwen's, Mistral's, Llama's, and Python's; `{}`
is the name of a tool."""


def converse(client: Client, name: str, question: Question) -> list[ChatCompletion]:
    """Ask a question, and give the results of tools until the model calls none.

    Raises:
        NotApplicable: the server takes no tools.
        VerificationFailed: there is no whole answer.
    """
    asked = question.to_dict()
    messages = list(asked["messages"])
    options = {"stream": question.stream, "tools": asked["tools"], "tool_choice": "auto"}
    found: list[ChatCompletion] = []
    while len(found) < ROUNDS:
        try:
            one = client.chat(name, messages, **options)
        except RequestFailed as error:
            hint = f"the launch lacks {PARSER}; a router would now ask another model"
            raise error.judged(("tool choice",), hint) from None
        found.append(one)
        if not one.calls or not question.results:
            break
        messages += [one.as_message, *(_result(call, question.results) for call in one.calls)]
    return found


def tool_call(question: Question, client: Client) -> str:
    """Check one way: the right calls with JSON arguments, nothing of them in the text."""
    name = f"streamed {question.title}" if question.stream else question.title
    found = converse(client, name, question)
    for one in found:
        if any(mark in one.content for mark in _marks(question.tools)):
            raise client.wrong(
                f"{name}: the call stays in the text: {replies.short(one.content)!r}",
                f"--tool-call-parser is another model's; required: {PARSER}",
            )
    calls = [call for one in found for call in one.calls]
    if not calls:
        raise client.wrong(
            f"{name}: the tool was not called; the model says {replies.short(found[0].content)!r}",
            f"required: {PARSER}; a drafter can drop calls too (vLLM 41967)",
        )
    if why := _broken(calls):
        raise client.wrong(
            f"{name}: {why}",
            "early parsers stream invalid JSON (vLLM 38946, fixed in 0.19.1); "
            "a drafter can drop arguments (vLLM 41967)",
        )
    if why := why_wrong(question, [one.as_message for one in found]):
        raise client.wrong(f"{name}: {why}", _hint(question))
    last = found[-1].content.strip()
    return replies.short(last) if last else "; ".join(_shown(call) for call in calls)


def _result(call: Mapping[str, Any], results: Mapping[str, str]) -> dict[str, Any]:
    text = results.get(call["function"]["name"], '{"error": "there is no such tool"}')
    return {"role": "tool", "tool_call_id": call["id"], "content": text}


def _marks(tools: Sequence[str]) -> set[str]:
    return {mark.replace("{}", tool) for mark in RAW for tool in tools}


def _broken(calls: Sequence[Mapping[str, Any]]) -> str:
    """Why calls are none: a name is missing, or the arguments are no JSON object."""
    for call in calls:
        if not isinstance(replies.decoded(call["function"]["arguments"]), dict):
            return f"the call is {replies.short(_shown(call))}, expected a JSON object"
    return ""


def _shown(call: Mapping[str, Any]) -> str:
    return f"{call['function']['name']}({call['function']['arguments']})"


def _hint(question: Question) -> str:
    if "markup" in question.id:
        return "a streaming parser doubles `<` in arguments (vLLM 38909, needs its patch)"
    if question.results and not question.stream:
        return (
            "an agent's loop that is not streamed can end after one step (vLLM 39043): stream it; "
            "otherwise the model or its chat template does not use the tool's result"
        )
    return (
        "the model calls tools, but wrongly: its --chat-template or a quantization that is too "
        "small for it; a drafter can drop calls (vLLM 41967)"
    )


def _expected(question: Question) -> str:
    calls = ", ".join(
        f"{call.name}({', '.join(map(str, call.arguments.values()))})" for call in question.calls
    )
    words = ", ".join(group[0] for group in question.words)
    return f"{calls}; then an answer with {words}" if calls and words else calls or words


WITHOUT = ("multimodal", "multi-modal", "image", "vision")
"""Words of a server's refusal of a picture (vLLM: `... is not a multimodal model`, `At most 0
image(s) may be provided`)."""

TEXT_ONLY = "language-model-only"


def vision(question: Question, client: Client) -> str:
    """A picture is seen."""
    if client.flags is not None and TEXT_ONLY in client.flags:
        raise NotApplicable(
            f"vision: the launch has --{TEXT_ONLY}",
            where=client.where,
            hint=f"--{TEXT_ONLY} leaves the vision tower out",
        )
    try:
        found = client.chat("vision", question.to_dict()["messages"])
    except RequestFailed as error:
        raise error.judged(WITHOUT, "the recipe's model takes no pictures") from None
    if why := why_wrong(question, [found.as_message]):
        raise client.wrong(
            f"vision: {question.shown} was shown; {why}",
            f"--{TEXT_ONLY} leaves the vision tower out; otherwise it was damaged",
        )
    return replies.short(" ".join(found.content.split()))


CHECKS = (
    *(
        Check(
            f"tool-{one.id}",
            one.readiness,
            one.title,
            one.text,
            _expected(one),
            partial(tool_call, one),
            one.stream,
        )
        for one in TOOL_CALLS
    ),
    *(
        Check(
            f"vision-{one.id}",
            one.readiness,
            one.title,
            one.text,
            _expected(one),
            partial(vision, one),
        )
        for one in VISION
        if one.title
    ),
)
