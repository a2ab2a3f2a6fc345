"""The answers that `ask.py` got, judged: a score, and the time of each answer.

A wrong answer is a measured one. A cell has failed where nothing was measured: the server cannot
do what was asked for, or gave no whole answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_cluster.bench import on_node
from spark_cluster.bench.expansion import PlannedCell
from spark_cluster.bench.generator import At, Generator, Measurement, Run, metric, result
from spark_cluster.bench.record import CellResult, Metric, MetricName, QuestionResult, Tool
from spark_cluster.bench.run_folder import json_of, number
from spark_cluster.bench.suite import Suite
from spark_cluster.engine.tool_checks import VERSION, ExactQuestion, chosen, why_wrong
from spark_cluster.node.replies import at, objects_of, short, text_of

ANSWER_S = 600.0
"""Seconds that an answer may take: 1,024 tokens at 7 tok/s are two and a half minutes."""

LEAST_S = 600.0
"""Seconds that a cell of questions may take at least."""

MOST_S = 4 * 3600.0
"""Seconds that it may take at most."""

HINTS = {
    "vision": "the recipe's model takes no pictures, or --language-model-only leaves them out",
    "tool_call": "it needs --enable-auto-tool-choice and the model's own --tool-call-parser",
}
"""What it means when the server refuses every question of a kind."""


@dataclass(frozen=True)
class Answer:
    """An answer to a question.

    Attributes:
        run: repetition, from 1.
        failed: why there is no whole answer, such as `HTTP 400: ...`; empty when there is one.
        wrong: why it is not right; empty when it is.
        total_ms, first_ms: of all its requests; until the first token of the first one.
        tokens: generated; None where the server did not tell.
    """

    question: str
    run: int
    failed: str
    wrong: str
    total_ms: float
    first_ms: float | None
    tokens: float | None


class Questions(Generator):
    """Questions whose answers are judged: our own program on the head."""

    def tool(self, suite: Suite) -> Tool:
        names = [question.id for question in of_suite(suite)]
        settings = {"temperature": suite.settings.temperature, "questions": names}
        return Tool(name="questions", version=VERSION, settings=settings)

    def measurement(self, at: At, cell: PlannedCell) -> Measurement:
        work = {
            "base_url": at.base_url,
            "model": at.served_name,
            "temperature": at.suite.settings.temperature,
            "answer_s": ANSWER_S,
            "largest_bytes": on_node.LARGEST_BYTES,
            "runs": cell.runs,
            "questions": [question.to_dict() for question in of_suite(at.suite)],
        }
        return Measurement((Run(on_node.command(at.folder, on_node.ASK, cell.id)),), questions=work)

    def limit_s(self, suite: Suite, cell: PlannedCell) -> float:
        return min(MOST_S, LEAST_S + ANSWER_S * cell.runs * len(of_suite(suite)))

    def results(
        self, suite: Suite, cell: PlannedCell, files: Mapping[str, str]
    ) -> list[CellResult]:
        return [parse(cell, of_suite(suite), json_of(files, f"{cell.id}.json"))]


def of_suite(suite: Suite) -> tuple[ExactQuestion, ...]:
    """Return the questions of a suite."""
    return chosen(suite.kind, tuple(suite.questions))


def parse(
    cell: PlannedCell, questions: Sequence[ExactQuestion], data: dict[str, Any] | str
) -> CellResult:
    """Return a cell's result.

    Args:
        data: the JSON result, or why there is none.
    """
    if isinstance(data, str):
        return result(cell, reasons=[data])
    known = {question.id: question for question in questions}
    found = [
        answer_of(known[name], entry)
        for entry in objects_of(data.get("answers"))
        if (name := text_of(entry.get("question"))) in known
    ]
    expected = cell.runs * len(questions)
    if len(found) != expected:
        return result(cell, reasons=[f"{len(found)} of {expected} questions were asked"])
    reasons, attention = _failures(cell, found)
    metrics = {} if reasons else _metrics(cell, found)
    made = result(cell, metrics=metrics, reasons=reasons, attention=attention)
    return made.model_copy(update={"questions": tuple(_by_question(questions, found))})


def _failures(cell: PlannedCell, found: Sequence[Answer]) -> tuple[list[str], list[str]]:
    """Return why nothing was measured, and what to be careful about."""
    failed = [answer for answer in found if answer.failed]
    if not failed:
        return [], []
    text = f"{len(failed)} of {len(found)} questions got no answer: {failed[0].failed}"
    refused = all(answer.failed.startswith("HTTP 4") for answer in failed)
    if len(failed) == len(found) and refused:
        return [f"{text} ({HINTS[cell.key.kind]})"], []
    # A request that the server refuses counts as a wrong answer, a lost one was not measured.
    if any(not answer.failed.startswith("HTTP") for answer in failed) or len(failed) == len(found):
        return [text], []
    return [], [text]


def _metrics(cell: PlannedCell, found: Sequence[Answer]) -> dict[MetricName, Metric]:
    """Return the figures, each with a value for each run."""
    runs = [[a for a in found if a.run == run] for run in range(1, cell.runs + 1)]
    metrics: dict[MetricName, Metric] = {}
    values: dict[MetricName, list[float | None]] = {
        "score": [sum(not a.wrong for a in run) / len(run) if run else None for run in runs],
        "answer_ms": [_mean(a.total_ms for a in run) for run in runs],
        "ttft_ms": [_mean(a.first_ms for a in run if a.first_ms is not None) for run in runs],
        "output_tps": [_speed(run) for run in runs],
    }
    for name, each in values.items():
        known = [value for value in each if value is not None]
        if len(known) == len(runs):
            metrics[name] = metric(known)
    return metrics


def _speed(answers: Sequence[Answer]) -> float | None:
    """Return the tokens a second of answers, their prefill included."""
    counted = [(a.tokens, a.total_ms) for a in answers if a.tokens is not None and a.total_ms > 0]
    if not counted:
        return None
    return sum(tokens for tokens, _ in counted) / sum(ms for _, ms in counted) * 1e3


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return sum(found) / len(found) if found else None


def _by_question(
    questions: Sequence[ExactQuestion], found: Sequence[Answer]
) -> Iterable[QuestionResult]:
    for question in questions:
        own = [answer for answer in found if answer.question == question.id]
        yield QuestionResult(
            question=question.id,
            streamed=question.stream,
            right=sum(not answer.wrong for answer in own),
            asked=len(own),
            answer_ms=_mean(answer.total_ms for answer in own),
            ttft_ms=_mean(a.first_ms for a in own if a.first_ms is not None),
            wrong=next((answer.wrong for answer in own if answer.wrong), ""),
        )


# -- one answer ------------------------------------------------------------------------------------


def answer_of(question: ExactQuestion, entry: Mapping[str, Any]) -> Answer:
    """Return an answer, judged; what the server sent is foreign input."""
    rounds = objects_of(entry.get("rounds"))
    failed = next((short(text) for one in rounds if (text := text_of(one.get("error")))), "")
    if not rounds:
        failed = "it was not asked"
    run, times = number(entry.get("run")), [number(one.get("total_ms")) for one in rounds]
    counts = [number(at(one, "usage", "completion_tokens")) for one in rounds]
    counted = [count for count in counts if count is not None]
    return Answer(
        question=question.id,
        run=int(run or 0),
        failed=failed,
        wrong=failed or why_wrong(question, [one.get("message") for one in rounds]),
        total_ms=sum(time for time in times if time is not None),
        first_ms=number(rounds[0].get("first_ms")) if rounds else None,
        tokens=sum(counted) if counted and len(counted) == len(rounds) else None,
    )
