"""Checks of tool calls and of pictures: questions with one right answer, in `tool_checks.toml`.

Tools are called in eight ways, with `tool_choice: auto`, as agents make them: one call, several,
one tool among three, in steps, with markup in the arguments, streamed and not. The ways are those
of a published table (source: forum-gemma4-31b-fp8). `bench` asks the same questions.
"""

from __future__ import annotations

import base64
import json
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from spark_cluster.config.recipe_schema import ReadinessCheck
from spark_cluster.engine.answer_checks import AnswerCheck, Client, NotApplicable, RequestFailed
from spark_cluster.node import replies
from spark_cluster.node.completions import ChatCompletion, converse
from spark_cluster.node.replies import at, decoded, short, text_of

PICTURES = Path(__file__).parent / "pictures"
"""PNG files of 336 pixels: large enough for every vision tower, and small for the prompt."""

VERSION = "1"
"""Of the questions; answers to other questions are not compared."""

MAX_TOKENS = 1024
"""Of an answer: enough for a model that thinks first."""


@dataclass(frozen=True)
class Call:
    """A call that is expected.

    Attributes:
        arguments: those that must be as given. In a text, upper and lower case, spaces at the
            ends and what follows a comma make no difference (`Paris, France`).
        exact: texts must be equal to the letter.
    """

    name: str
    arguments: Mapping[str, str | int | float] = field(default_factory=dict)
    exact: bool = False


@dataclass(frozen=True)
class ExactQuestion:
    """A question, and what makes an answer right.

    Attributes:
        text: what is asked.
        title: of its check, in `verify`; empty for one that only suites ask.
        readiness: the readiness check that its check belongs to.
        picture: name of the file in `pictures` that it is about; empty without one.
        shown: the picture in words.
        stream: whether the answer is streamed.
        tools: that the model is offered, by name.
        results: of tools, by name; with them the model is asked again after it called some.
        calls: that it must make, in whatever order, and no others.
        words: of each group the answer must have one.
        never: words that no right answer has.
    """

    id: str
    text: str
    title: str = ""
    readiness: ReadinessCheck = "vision"
    picture: str = ""
    shown: str = ""
    stream: bool = True
    tools: tuple[str, ...] = ()
    results: Mapping[str, str] = field(default_factory=dict)
    calls: tuple[Call, ...] = ()
    words: tuple[tuple[str, ...], ...] = ()
    never: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """As `ask.py` reads it."""
        content: Any = self.text
        if self.picture:
            content = [
                {"type": "image_url", "image_url": {"url": picture_url(self.picture)}},
                {"type": "text", "text": self.text},
            ]
        return {
            "id": self.id,
            "messages": [{"role": "user", "content": content}],
            "stream": self.stream,
            "tools": [_tool(name) for name in self.tools],
            "results": dict(self.results),
            "max_tokens": MAX_TOKENS,
        }


def picture_url(name: str) -> str:
    """Return a picture as a `data:` URL."""
    content = base64.b64encode((PICTURES / f"{name}.png").read_bytes())
    return f"data:image/png;base64,{content.decode()}"


_FILE = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_QUESTIONS = TypeAdapter(tuple[ExactQuestion, ...])

VISION = _QUESTIONS.validate_python(_FILE["vision"])
TOOL_CALLS = _QUESTIONS.validate_python(_FILE["tool_call"])

CATALOGUE: Mapping[str, tuple[ExactQuestion, ...]] = {"vision": VISION, "tool_call": TOOL_CALLS}
"""By the kind of a suite."""


def chosen(kind: str, names: tuple[str, ...] = ()) -> tuple[ExactQuestion, ...]:
    """Return the questions of a kind, or those of them that are named, in the catalogue's order."""
    return tuple(one for one in CATALOGUE[kind] if not names or one.id in names)


def _tool(name: str) -> dict[str, Any]:
    offered = _FILE["tools"][name]
    properties = offered["properties"]
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    function = {"name": name, "description": offered["description"], "parameters": parameters}
    return {"type": "function", "function": function}


# -- whether an answer is right ------------------------------------------------------------------


def why_wrong(question: ExactQuestion, messages: Sequence[Any]) -> str:
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


def _wrong_calls(question: ExactQuestion, calls: Sequence[Any], text: str) -> str:
    if question.tools and not calls:
        said = f'; it says "{short(text)}"' if text.strip() else ""
        return f"no tool was called{said}"
    left = list(calls)
    for expected in question.calls:
        match = next((call for call in left if _fits(expected, call)), None)
        if match is None:
            made = ", ".join(_shown(call) for call in calls)
            wanted = f"{expected.name}({json.dumps(dict(expected.arguments))})"
            return short(f"the call was {made}; expected {wanted}")
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


def _wrong_words(question: ExactQuestion, text: str) -> str:
    missing = [group[0] for group in question.words if not any(_has(text, w) for w in group)]
    if missing:
        return f'"{short(text)}" has no {missing[0]}' if text.strip() else "the answer is empty"
    found = [word for word in question.never if _has(text, word)]
    return f'"{short(text)}" has {found[0]} too' if found else ""


UNITS = ("C", "h", "hrs", "am", "pm")
"""Units that follow a number without a space, such as `17C` and `9:40pm`."""


def _has(text: str, word: str) -> bool:
    """Return True when a text has a word, or a number with its unit; 17 is no part of 17.5."""
    before, after = r"(?<!\w)", r"(?!\w)"
    if word[-1].isdigit():
        before += r"(?<!\d[.,])"
        after = rf"(?![.,]\d)(?=(?:{'|'.join(UNITS)})?(?!\w))"
    return re.search(before + re.escape(word) + after, text, re.IGNORECASE) is not None


PARSER = "--enable-auto-tool-choice and the model's own --tool-call-parser (Gemma 4: gemma4)"

RAW = ("<|tool_call", "<tool_call", "[TOOL_CALLS]", "<function=", "call:{}", "[{}(", '"name": "{}"')
"""How calls look when they were not parsed: Gemma's, Qwen's, Mistral's, Llama's, and Python's; `{}`
is the name of a tool."""


def _conversation(client: Client, name: str, question: ExactQuestion) -> list[ChatCompletion]:
    """Ask a question, and give the results of tools until the model calls none.

    Raises:
        NotApplicable: the server takes no tools.
        VerificationFailed: there is no whole answer.
    """
    asked = question.to_dict()
    options = {"stream": question.stream, "tools": asked["tools"], "tool_choice": "auto"}
    try:
        return converse(asked, lambda messages: client.chat(name, messages, **options))
    except RequestFailed as error:
        hint = f"the launch lacks {PARSER}; a router would now ask another model"
        raise error.judged(("tool choice",), hint) from None


def tool_call(question: ExactQuestion, client: Client) -> str:
    """Check one way: the right calls with JSON arguments, nothing of them in the text."""
    name = f"streamed {question.title}" if question.stream else question.title
    found = _conversation(client, name, question)
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
    return replies.short(last) if last else "; ".join(_shown(call["function"]) for call in calls)


def _marks(tools: Sequence[str]) -> set[str]:
    return {mark.replace("{}", tool) for mark in RAW for tool in tools}


def _broken(calls: Sequence[Mapping[str, Any]]) -> str:
    """Why calls are none: a name is missing, or the arguments are no JSON object."""
    for call in calls:
        if not isinstance(replies.decoded(call["function"]["arguments"]), dict):
            return f"the call is {replies.short(_shown(call['function']))}, expected a JSON object"
    return ""


def _hint(question: ExactQuestion) -> str:
    """Return what to do where the calls of a way are wrong."""
    if "markup" in question.id:
        return str(_FILE["hints"]["markup"])
    in_steps = question.results and not question.stream
    return str(_FILE["hints"]["in_steps" if in_steps else "otherwise"])


def _expected(question: ExactQuestion) -> str:
    calls = ", ".join(
        f"{call.name}({', '.join(map(str, call.arguments.values()))})" for call in question.calls
    )
    words = ", ".join(group[0] for group in question.words)
    return f"{calls}; then an answer with {words}" if calls and words else calls or words


WITHOUT = ("multimodal", "multi-modal", "image", "vision")
"""Words of a server's refusal of a picture (vLLM: `... is not a multimodal model`, `At most 0
image(s) may be provided`)."""

TEXT_ONLY = "language-model-only"


def vision(question: ExactQuestion, client: Client) -> str:
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


def _check(
    kind: str,
    one: ExactQuestion,
    run: Callable[[ExactQuestion, Client], str],
    *,
    streamed: bool = False,
) -> AnswerCheck:
    """Return the check that asks a question."""
    about = (one.readiness, one.title, one.text, _expected(one))
    return AnswerCheck(f"{kind}-{one.id}", *about, partial(run, one), streamed)


TOOL_CHECKS = (
    *(_check("tool", one, tool_call, streamed=one.stream) for one in TOOL_CALLS),
    *(_check("vision", one, vision) for one in VISION if one.title),
)
