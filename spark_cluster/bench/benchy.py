"""llama-benchy 0.4.0: its command line for a cell, its progress, and its result.

Its exit status is 0 when every request got HTTP 500, so nothing here asks for it: what counts is
whether every figure is there for every run (source: llama-benchy).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean, quantiles
from typing import Any

from spark_cluster.bench.expansion import PlannedCell
from spark_cluster.bench.generator import OFFLINE, At, Generator, Measurement, Run, metric, result
from spark_cluster.bench.record import CellKey, CellResult, Metric, MetricName, Tool
from spark_cluster.bench.run_folder import json_of, number, numbers
from spark_cluster.bench.suite import MeasurementSettings, Suite
from spark_cluster.node.replies import at as found_at
from spark_cluster.node.replies import decoded, objects_of, short

NAME = "llama-benchy"
VERSION = "0.4.0"
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

TOTALS: dict[MetricName, str] = {
    "pp_tps": "pp_throughput",
    "tg_tps": "tg_throughput",
    "peak_tps": "peak_throughput",
}
"""Of all requests of a run together: a value for each run."""

OF_REQUESTS: dict[MetricName, str] = {
    "pp_tps_request": "pp_req_throughput",
    "tg_tps_request": "tg_req_throughput",
    "peak_tps_request": "peak_req_throughput",
    "ttfr_ms": "ttfr",
    "est_ppt_ms": "est_ppt",
    "e2e_ttft_ms": "e2e_ttft",
}
"""A value for each request."""

_PREFILL = {"pp_tps", "pp_tps_request"}
_DECODE = {"tg_tps", "tg_tps_request"}


class LlamaBenchy(Generator):
    """llama-benchy, in an environment of its own on the head."""

    role = "llama_benchy"
    version = VERSION

    def tool(self, suite: Suite) -> Tool:
        settings = suite.settings
        return Tool(
            name=NAME,
            version=VERSION,
            latency_mode=settings.latency_mode,
            prefix_caching=settings.prefix_caching,
            settings=settings.model_dump(exclude={"latency_mode", "prefix_caching"}),
        )

    def measurement(self, at: At, cell: PlannedCell) -> Measurement:
        argv = (f"{at.settings.path}/bin/python", "-c", LAUNCHER, *arguments(at, cell))
        book = at.settings.book
        return Measurement((Run(argv),), {BOOK: book, **OFFLINE} if book else {})

    def results(
        self, suite: Suite, cell: PlannedCell, files: Mapping[str, str]
    ) -> list[CellResult]:
        progress = read_progress(files.get(f"{cell.id}.jsonl", "").splitlines())
        found, output = json_of(files, f"{cell.id}.json"), files.get(f"{cell.id}.log", "")
        return parse(cell, found, progress, suite.settings, output)


def arguments(at: At, cell: PlannedCell) -> list[str]:
    """Return the arguments for a cell, whose result and progress are written below `at.folder`."""
    settings, raw = at.suite.settings, f"{at.folder}/raw/{cell.id}"
    key = cell.key
    words = ["--base-url", at.base_url, "--model", at.model]
    words += ["--served-model-name", at.served_name, "--tokenizer", at.tokenizer]
    words += ["--pp", str(key.prompt), "--tg", str(key.output), "--depth", str(key.depth)]
    words += ["--concurrency", str(key.concurrency), "--runs", str(cell.runs)]
    words += ["--latency-mode", settings.latency_mode]
    words.append("--enable-prefix-caching" if settings.prefix_caching else "--no-cache")
    if settings.exact_output:
        words.append("--exact-tg")
    if not settings.coherence:
        words.append("--skip-coherence")
    if settings.temperature is not None:
        words += ["--extra-body", f"temperature={settings.temperature:g}"]
    words += ["--save-result", f"{raw}.json", "--format", "json"]
    return [*words, "--emit-progress", f"{raw}.jsonl"]


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


def parse(
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
    if version != VERSION:
        reasons.append(f"written by {NAME} {version}, expected {VERSION}")
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
        metrics, why, attention = _metrics(entry, key, cell.runs, number(data.get("latency_ms")))
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
        reasons.append(f"{progress.short} of {progress.ended} answers were shorter than asked for")
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


def _metrics(
    entry: Mapping[str, Any], key: CellKey, runs: int, latency_ms: float | None
) -> tuple[dict[MetricName, Metric], list[str], list[str]]:
    """Return the figures, why some are missing, and what to be careful about."""
    metrics: dict[MetricName, Metric] = {}
    reasons: list[str] = []
    attention: list[str] = []
    requests = runs * key.concurrency
    answered = len(numbers(found_at(entry, "ttfr", "values")))
    for name, field_name in {**TOTALS, **OF_REQUESTS}.items():
        if name in _DECODE and key.output < 2:
            continue
        expected = runs if name in TOTALS else requests
        values = numbers(found_at(entry, field_name, "values"))
        if len(values) == expected:
            metrics[name] = _metric(values, runs)
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


def _metric(values: list[float], runs: int) -> Metric:
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
