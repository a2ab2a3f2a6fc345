"""The last rungs of readiness: what a real client does, asked by the head, judged here.

Fluent nonsense, a tool call that stays text, thoughts in the wrong field: `/health` is fine with
all of them, and each has been seen on a Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from spark_cluster.config.launch import Launch
from spark_cluster.errors import VerificationFailed
from spark_cluster.inference import replies
from spark_cluster.runner.events import Progress
from spark_cluster.runner.play import Play
from spark_cluster.serving import embedding_size, readiness
from spark_cluster.serving.client import PARSER, Client
from spark_cluster.serving.kind_rungs import KIND_RUNGS
from spark_cluster.serving.plan import ServePlan
from spark_cluster.serving.text_checks import incoherent, red_square

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
"""How calls look when they were not parsed: Gemma's, Qwen's, and Python's."""


def coherence(client: Client) -> None:
    """400 tokens without falling into a loop or into signs (NaN, FP8 KV cache)."""
    asked = "Tell a story about a lighthouse keeper and a storm, in about three hundred words."
    found = client.message("coherence", asked, max_tokens=400)
    text = f"{replies.reasoning(found)}\n{replies.text_of(found.get('content'))}".strip()
    why = incoherent(text) or ("it is much too short" if len(text) < LEAST else "")
    if why:
        raise client.wrong(
            f"coherence: {why}: {replies.short(text)!r}",
            "kernels that give NaN print `!!!!`, an FP8 KV cache can make a model repeat itself: "
            "try --moe-backend marlin, or --kv-cache-dtype auto",
        )


def tool_call(client: Client) -> None:
    """A tool that is offered is called, whole and streamed, and its arguments are JSON."""
    asked = "What is the weather in Paris at this moment? Use the tool."
    options = {"tools": TOOLS, "tool_choice": "auto"}
    found = client.message("tool call", asked, **options)
    _call("tool call", client, found.get("tool_calls"), found.get("content"))
    body = client.post("streamed tool call", asked, stream=True, **options)
    calls, content = replies.streamed(body)
    _call("streamed tool call", client, calls, content)


def reasoning(client: Client) -> None:
    """Check that the reasoning comes in a field of its own."""
    found = client.message(
        "reasoning",
        "A bat and a ball cost 1.10 together; the bat costs 1 more than the ball. "
        "What does the ball cost?",
        chat_template_kwargs={"enable_thinking": True},
        skip_special_tokens=False,  # the parser wants to see the delimiters (vLLM 38855)
    )
    content = replies.text_of(found.get("content")).lstrip()
    leaked = content.startswith(("thought\n", "<think>")) or "<|channel" in content
    if leaked or not replies.reasoning(found).strip():
        what = "the reasoning is in the text" if leaked else "there is no reasoning"
        raise client.wrong(
            f"reasoning: {what}: {replies.short(content)!r}",
            "--reasoning-parser of this model is missing or wrong (Gemma 4: gemma4; vLLM 38855)",
        )


def vision(client: Client) -> None:
    """A picture is seen."""
    picture = {"type": "image_url", "image_url": {"url": red_square()}}
    question = {"type": "text", "text": "Which colour is this picture? Answer with one word."}
    found = client.message("vision", [picture, question])
    text = replies.text_of(found.get("content"))
    if "red" not in text.lower():
        raise client.wrong(
            f"vision: a red square was shown, the model says {replies.short(text)!r}",
            "--language-model-only leaves the vision tower out; otherwise it was damaged",
        )


RUNGS: dict[str, Callable[[Client], None]] = {
    "coherence": coherence,
    "tool_call": tool_call,
    "reasoning": reasoning,
    "vision": vision,
}
"""Of chat models, by the recipe's names; `answer` is the recipe's own question (`readiness.ask`),
and other kinds have theirs in `kind_rungs.py`."""


def climb(play: Play, plan: ServePlan) -> str:
    """Climb each rung that the recipe names, in its order.

    Returns:
        The answer to the recipe's own question; of another kind than chat, what its rung found.

    Raises:
        VerificationFailed: at the first rung that does not hold.
    """
    answer = ""
    client = Client(play.session(play.head), plan.endpoint, play.head.name)
    if plan.recipe.kind == "embedding":
        client = embedding_size.expecting(client, play.session(play.head), plan.recipe)
    for rung in plan.recipe.readiness.rungs:
        play.bus.emit(Progress(play.head.name, "verify", rung.replace("_", " ")))
        try:
            if rung == "answer":
                answer = readiness.ask(play, plan.endpoint, plan.recipe.probe)
            elif rung in KIND_RUNGS:
                answer = KIND_RUNGS[rung](client)
            else:
                RUNGS[rung](client)
        except VerificationFailed as error:
            raise _with_known(error, rung, plan.launch) from None
    return answer


def _with_known(error: VerificationFailed, rung: str, launch: Launch) -> VerificationFailed:
    """The error with the known issues of the launch that this rung shows."""
    from spark_cluster.known_issues import live_issues

    known = live_issues.live(rungs={rung: error.message}, launch=launch)
    lines = [f"known: {f.title} ({f.id}): {f.fix}" for f in known]
    hint = "\n  ".join([error.hint, *lines] if error.hint else lines)
    return VerificationFailed(error.message, where=error.where, hint=hint)


def _call(rung: str, client: Client, calls: Any, content: Any) -> None:
    """Check for one call of the tool, with a city, and nothing of it in the text."""
    text = content if isinstance(content, str) else ""
    if any(mark in text for mark in RAW):
        raise client.wrong(
            f"{rung}: the call stays in the text: {replies.short(text)!r}",
            f"--tool-call-parser is another model's; required: {PARSER}",
        )
    call = replies.at(calls, 0, "function")
    if not isinstance(call, dict):
        raise client.wrong(
            f"{rung}: the tool was not called; the model says {replies.short(text)!r}",
            f"required: {PARSER}; a drafter can drop calls too (vLLM 41967)",
        )
    name, arguments = call.get("name"), call.get("arguments")
    city = replies.at(replies.decoded(arguments), "city")
    if name != TOOL or not isinstance(city, str):
        found = replies.short(f"{name}({arguments})")
        raise client.wrong(
            f'{rung}: the call is {found}, expected {TOOL}({{"city": ...}})',
            "early parsers stream invalid JSON (vLLM 38946, fixed in 0.19.1); "
            "a drafter can drop arguments (vLLM 41967)",
        )
