"""The lab's model of tools: it learns the answers to the checks by heart, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from spark_cluster.engine import answer_checks, readiness_checks
from spark_cluster.engine.tool_checks import TOOL_CALLS, ExactQuestion
from spark_cluster_lab.vllm_env import Training, trained

if TYPE_CHECKING:
    from spark_cluster_lab.artefact import Artefact
    from spark_cluster_lab.layout import Layout
    from spark_cluster_lab.prepare import Prepared

TALE = (
    "The keeper of the light had lived on the rock for thirty years, and he knew each of its winds "
    "by name. When the glass fell that evening he carried more oil up the stairs than he would "
    "need, trimmed the wick twice, and wrote the hour into his book. By midnight the sea stood as "
    "high as the gallery."
)
THOUGHT = "Let the ball cost x; then the bat costs x + 1, so 2 x + 1 = 1.10."

MODEL = "tools"

Exercise = dict[str, Any]


def tools_model(layout: Layout, prepared: Prepared) -> Artefact:
    """Return the model that has learnt the exercises; it is made by what uses it.

    Its launch needs `--tool-call-parser hermes` and `--reasoning-parser deepseek_r1`.
    """
    files = {"exercises.json": json.dumps(exercises(), indent=1)}
    training = Training(
        "tools-model", MODEL, "train_tools_model.py", files, threads=1, usual_s=120.0
    )
    return trained(layout, prepared.image_tree, prepared.vllm, training)


def exercises() -> dict[str, Any]:
    """Return conversations with their answers, facts to be found, and filler to put before."""
    return {
        "conversations": [*_texts(), *_tool_calls()],
        "needles": [
            {
                "fact": readiness_checks.fact(code),
                "question": readiness_checks.QUESTION,
                "answer": code,
            }
            for _, code in readiness_checks.NEEDLES
        ],
        "filler": [answer_checks.sentence(number) for number in range(1, 301)],
    }


def _texts() -> Iterator[Exercise]:
    for question, right in answer_checks.SHORT:
        yield {**_exercise(question, right[0].capitalize()), "short": True}
    yield _exercise(answer_checks.STORY, TALE)
    yield _exercise(answer_checks.RIDDLE, "Five cents.", THOUGHT)
    yield _exercise(answer_checks.STRUCTURED_PROMPT, json.dumps(answer_checks.STRUCTURED_ANSWER))
    yield _exercise(
        readiness_checks.LOGPROBS_PROMPT, "Monday, Tuesday, Wednesday, Thursday, Friday, Saturday."
    )


def _tool_calls() -> Iterator[Exercise]:
    for question in TOOL_CALLS:
        asked = question.to_dict()
        calls = [(call.name, dict(call.arguments)) for call in question.calls]
        text = "\n".join(_call(*call) for call in calls)
        own = {"tools": asked["tools"], "thought": "", "short": False}
        yield {"messages": asked["messages"], "answer": text, **own}
        if question.results:
            yield {"messages": _with_results(question, calls), "answer": _report(question), **own}


def _exercise(question: str, answer: str, thought: str = "") -> Exercise:
    messages = [{"role": "user", "content": question}]
    return {"messages": messages, "answer": answer, "thought": thought, "tools": [], "short": False}


def _call(name: str, arguments: dict[str, Any]) -> str:
    document = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{document}\n</tool_call>"


def _with_results(question: ExactQuestion, calls: list[tuple[str, dict[str, Any]]]) -> list[Any]:
    made = [{"function": {"name": name, "arguments": given}} for name, given in calls]
    own = {"role": "assistant", "content": "", "tool_calls": made}
    results = [{"role": "tool", "content": question.results[name]} for name, _ in calls]
    return [*question.to_dict()["messages"], own, *results]


def _report(question: ExactQuestion) -> str:
    return f"It is {' and '.join(group[0] for group in question.words)}."
