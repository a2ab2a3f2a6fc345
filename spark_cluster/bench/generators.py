"""The tools that measure the cells of a suite: questions, llama-benchy, and those of open loops.

To add one, write a `Generator` here or in `open_loop.py`, list it in `GENERATORS`, give its name to
`suite.py`, and write a role that installs it on the head where it is not part of the engine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, quantiles
from typing import Any

from spark_cluster.bench import on_node
from spark_cluster.bench.expansion import (
    OFFLINE,
    At,
    Generator,
    GeneratorRun,
    Measurement,
    PlannedCell,
    declared,
    metric,
    result,
)
from spark_cluster.bench.open_loop import GuideLlm, VllmBench
from spark_cluster.bench.record import (
    CellKey,
    CellResult,
    Metric,
    MetricName,
    QuestionResult,
    Tool,
    json_of,
    number,
    numbers,
)
from spark_cluster.bench.suite import MeasurementSettings, Suite, ToolName
from spark_cluster.engine.tool_checks import VERSION, ExactQuestion, chosen, why_wrong
from spark_cluster.node.replies import at, decoded, objects_of, short, text_of
from spark_cluster.node.replies import at as found_at

# The answers that `ask.py` got, judged: a score, and the time of each answer.
#
# A wrong answer is a measured one. A cell has failed where nothing was measured: the server cannot
# do what was asked for, or gave no whole answer.

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
class JudgedAnswer:
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

    name = "questions"

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
        return Measurement(
            (GeneratorRun(on_node.command(at.folder, on_node.ASK, cell.id)),), questions=work
        )

    def limit_s(self, suite: Suite, cell: PlannedCell) -> float:
        return min(MOST_S, LEAST_S + ANSWER_S * cell.runs * len(of_suite(suite)))

    def results(
        self, suite: Suite, cell: PlannedCell, files: Mapping[str, str]
    ) -> list[CellResult]:
        return [judged(cell, of_suite(suite), json_of(files, f"{cell.id}.json"))]


def of_suite(suite: Suite) -> tuple[ExactQuestion, ...]:
    """Return the questions of a suite."""
    return chosen(suite.kind, tuple(suite.questions))


def judged(
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
    metrics = {} if reasons else _answer_metrics(cell, found)
    made = result(cell, metrics=metrics, reasons=reasons, attention=attention)
    return made.model_copy(update={"questions": tuple(_by_question(questions, found))})


def _failures(cell: PlannedCell, found: Sequence[JudgedAnswer]) -> tuple[list[str], list[str]]:
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


def _answer_metrics(cell: PlannedCell, found: Sequence[JudgedAnswer]) -> dict[MetricName, Metric]:
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


def _speed(answers: Sequence[JudgedAnswer]) -> float | None:
    """Return the tokens a second of answers, their prefill included."""
    counted = [(a.tokens, a.total_ms) for a in answers if a.tokens is not None and a.total_ms > 0]
    if not counted:
        return None
    return sum(tokens for tokens, _ in counted) / sum(ms for _, ms in counted) * 1e3


def _mean(values: Iterable[float]) -> float | None:
    found = list(values)
    return sum(found) / len(found) if found else None


def _by_question(
    questions: Sequence[ExactQuestion], found: Sequence[JudgedAnswer]
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


def answer_of(question: ExactQuestion, entry: Mapping[str, Any]) -> JudgedAnswer:
    """Return an answer, judged; what the server sent is foreign input."""
    rounds = objects_of(entry.get("rounds"))
    failed = next((short(text) for one in rounds if (text := text_of(one.get("error")))), "")
    if not rounds:
        failed = "it was not asked"
    run, times = number(entry.get("run")), [number(one.get("total_ms")) for one in rounds]
    counts = [number(at(one, "usage", "completion_tokens")) for one in rounds]
    counted = [count for count in counts if count is not None]
    return JudgedAnswer(
        question=question.id,
        run=int(run or 0),
        failed=failed,
        wrong=failed or why_wrong(question, [one.get("message") for one in rounds]),
        total_ms=sum(time for time in times if time is not None),
        first_ms=number(rounds[0].get("first_ms")) if rounds else None,
        tokens=sum(counted) if counted and len(counted) == len(rounds) else None,
    )


# llama-benchy 0.4.0: its command line for a cell, its progress, and its result.
#
# Its exit status is 0 when every request got HTTP 500, so nothing here asks for it: what counts is
# whether every figure is there for every run (source: llama-benchy).

PROGRESS = "llama-benchy-progress.v1"

BOOK = "SPARK_CLUSTER_BOOK"
"""Variable with the path of a text for the prompts."""

LAUNCHER = f"""\
import os
from llama_benchy.__main__ import main
if book := os.environ.get("{BOOK}"):
    cache = os.path.expanduser("~/.cache/llama-benchy")
    os.makedirs(cache, exist_ok=True)
    link = os.path.join(cache, "cc6a0b5782734ee3b9069aa3b64cc62c.txt")
    if not os.path.lexists(link):
        os.symlink(book, link)
main()
"""
"""llama-benchy has no option for a text that is there: before it downloads its book, it looks into
its cache (source: llama-benchy)."""

_DECLARED = declared()["llama-benchy"]
OF_RUNS: dict[MetricName, str] = _DECLARED["of_runs"]
OF_REQUESTS: dict[MetricName, str] = _DECLARED["of_requests"]

_PREFILL = {"pp_tps", "pp_tps_request"}
_DECODE = {"tg_tps", "tg_tps_request"}


class LlamaBenchy(Generator):
    """llama-benchy, in an environment of its own on the head."""

    name = "llama-benchy"

    def tool(self, suite: Suite) -> Tool:
        own = suite.settings.model_dump(include={"latency_mode", "prefix_caching"})
        return super().tool(suite).model_copy(update=own)

    def measurement(self, at: At, cell: PlannedCell) -> Measurement:
        argv = (f"{at.settings.path}/bin/python", "-c", LAUNCHER, *self.arguments(at, cell))
        book = at.settings.book
        return Measurement((GeneratorRun(argv),), {BOOK: book, **OFFLINE} if book else {})

    def results(
        self, suite: Suite, cell: PlannedCell, files: Mapping[str, str]
    ) -> list[CellResult]:
        progress = read_progress(files.get(f"{cell.id}.jsonl", "").splitlines())
        found, output = json_of(files, f"{cell.id}.json"), files.get(f"{cell.id}.log", "")
        return benchy_results(cell, found, progress, suite.settings, output)


# -- progress --------------------------------------------------------------------------------------


@dataclass
class Requests:
    """What the progress stream of a cell says of its requests.

    Attributes:
        ended: requests.
        short: those that ended with fewer tokens than they were to have.
        errors: what the server answered instead, of each that failed.
        complete: `ok`, `error` or `interrupted`; empty where it did not come so far.
    """

    ended: int = 0
    short: int = 0
    errors: list[str] = field(default_factory=list)
    complete: str = ""


def read_progress(lines: Iterable[str]) -> Requests:
    """Return what a stream says; a line that is cut, or of another format, says nothing."""
    found, wanted = Requests(), {}
    for line in lines:
        event = decoded(line)
        if not isinstance(event, dict) or event.get("schema") != PROGRESS:
            continue
        kind, request = event.get("type"), number(event.get("request_id"))
        if kind == "request_start":
            wanted[request] = number(event.get("response_size")) or 0
        elif kind == "bench_complete":
            found.complete = str(event.get("status", ""))
        elif kind == "request_end":
            found.ended += 1
            if error := str(event.get("error") or ""):
                found.errors.append(error)
            elif (number(event.get("total_tokens")) or 0) < wanted.pop(request, 0):
                found.short += 1
    return found


# -- result ----------------------------------------------------------------------------------------


def benchy_results(
    cell: PlannedCell,
    data: dict[str, Any] | str,
    progress: Requests,
    settings: MeasurementSettings,
    output: str = "",
) -> list[CellResult]:
    """Return a cell's results: its own, and with prefix caching that of its context's prefill.

    Args:
        data: the JSON result, or why there is none.
        output: what the program printed.
    """
    reasons = _said(progress, settings, output)
    if isinstance(data, str):
        return [result(cell, reasons=[*reasons, data])]
    version = str(data.get("version"))
    if version != _DECLARED["version"]:
        reasons.append(f"written by llama-benchy {version}, expected {_DECLARED['version']}")
    entries = objects_of(data.get("benchmarks"))
    wanted = [cell.key]
    if settings.prefix_caching and cell.key.depth:
        wanted.insert(0, cell.key.model_copy(update={"context_prefill": True}))
    results = []
    for key in wanted:
        entry = next((e for e in entries if is_of(e, key)), None)
        if entry is None:
            missing = "the result has no such benchmark" if entries else "the result is empty"
            results.append(result(cell, key=key, reasons=[*reasons, missing]))
            continue
        metrics, why, attention = _benchy_metrics(
            entry, key, cell.runs, number(data.get("latency_ms"))
        )
        why = [*reasons, *why]
        results.append(result(cell, key=key, metrics=metrics, reasons=why, attention=attention))
    return results


def _said(progress: Requests, settings: MeasurementSettings, output: str) -> list[str]:
    """Return what the stream and the output say went wrong."""
    reasons = []
    if "Coherence test FAILED" in output:
        line = next(text for text in output.splitlines() if "Coherence test FAILED" in text)
        reasons.append(
            f"answers are not coherent: {short(line.partition('FAILED')[2].strip(': '))}"
        )
    if "Falling back to 'gpt2' tokenizer" in output:
        reasons.append("the tokenizer was not found, so prompts have another length")
    if progress.errors:
        text = short(" ".join(progress.errors[0].split()))
        reasons.append(f"{len(progress.errors)} of {progress.ended} requests failed: {text}")
    if progress.short and settings.exact_output:
        reasons.append(f"{progress.short} of {progress.ended} answers were shorter than requested")
    if progress.complete and progress.complete != "ok":
        reasons.append(f"it ended with '{progress.complete}'")
    return reasons


def is_of(entry: Mapping[str, Any], key: CellKey) -> bool:
    """Return whether an entry of a result's `benchmarks` is of this load."""
    return (
        entry.get("prompt_size") == key.prompt
        and entry.get("response_size") == key.output
        and entry.get("context_size") == key.depth
        and entry.get("concurrency") == key.concurrency
        and bool(entry.get("is_context_prefill_phase")) == key.context_prefill
    )


def _benchy_metrics(
    entry: Mapping[str, Any], key: CellKey, runs: int, latency_ms: float | None
) -> tuple[dict[MetricName, Metric], list[str], list[str]]:
    """Return the figures, why some are missing, and what to be careful about."""
    metrics: dict[MetricName, Metric] = {}
    reasons: list[str] = []
    attention: list[str] = []
    requests = runs * key.concurrency
    answered = len(numbers(found_at(entry, "ttfr", "values")))
    for name, field_name in {**OF_RUNS, **OF_REQUESTS}.items():
        if name in _DECODE and key.output < 2:
            continue
        expected = runs if name in OF_RUNS else requests
        values = numbers(found_at(entry, field_name, "values"))
        if len(values) == expected:
            metrics[name] = _benchy_metric(values, runs)
        elif name in _PREFILL and answered == requests:
            # est_ppt was 0: nothing is left of the first response when the latency is taken off.
            latency = "" if latency_ms is None else f" ({latency_ms:.1f} ms)"
            of = " of single requests" if name in OF_REQUESTS and key.concurrency > 1 else ""
            why = f"the first response came sooner than the latency{latency}"
            attention.append(f"no prefill speed{of}: {why}")
        elif not values:
            reasons.append(f"{field_name} has no value")
        else:
            reasons.append(
                f"{field_name} has {len(values)} of {expected} values: runs were dropped"
            )
    return metrics, reasons, attention


def _benchy_metric(values: list[float], runs: int) -> Metric:
    """Return a figure with a value for each run: the mean over its requests.

    Requests of one run wait for each other, so that they are no measurements of their own: a test
    that took them for such would find differences where there are none.
    """
    size = len(values) // runs
    each = [fmean(values[at : at + size]) for at in range(0, len(values), size)]
    if size == 1:
        return metric(each)
    shares = quantiles(values, n=100, method="inclusive")
    return metric(each, {f"p{p}": shares[p - 1] for p in (5, 50, 95)})


GENERATORS: dict[ToolName, Generator] = {
    "llama-benchy": LlamaBenchy(),
    "vllm-bench": VllmBench(),
    "guidellm": GuideLlm(),
}
"""Of suites of the kind `load`, by `tool`."""


def of(suite: Suite) -> Generator:
    """Return what measures the cells of a suite."""
    return GENERATORS[suite.tool] if suite.kind == "load" else Questions()
