"""`vllm bench serve`: its command line for a cell, and its result.

For open loops: requests come at a rate, whether the server keeps up or not. The format is that of
vLLM 0.32 (`vllm/benchmarks/serve.py`; source: vllm-source).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from spark_cluster.bench.benchy import Target
from spark_cluster.bench.expansion import REQUESTS, PlannedCell
from spark_cluster.bench.reading import number, read_json, result
from spark_cluster.bench.record import CellResult, Metric, MetricName, Tool
from spark_cluster.bench.suite_schema import MeasurementSettings, Slo

NAME = "vllm-bench"

KEY_VARIABLE = "OPENAI_API_KEY"
"""From which the program takes the endpoint's key; there is no argument for it."""

PERCENTILES = (5, 50, 90, 95, 99)

TIMES: dict[MetricName, str] = {
    "ttft_ms": "ttft",
    "tpot_ms": "tpot",
    "itl_ms": "itl",
    "e2el_ms": "e2el",
}

RATES: dict[MetricName, str] = {
    "request_throughput": "request_throughput",
    "output_tps": "output_throughput",
}

DRAFTED: dict[MetricName, tuple[str, float]] = {
    "acceptance": ("spec_decode_acceptance_rate", 0.01),
    "acceptance_length": ("spec_decode_acceptance_length", 1.0),
}
"""Of speculative decoding: the field, and what its figure is multiplied by."""


def arguments(
    cell: PlannedCell,
    target: Target,
    settings: MeasurementSettings,
    slo: Slo | None,
    folder: str,
    *,
    run: int = 1,
) -> list[str]:
    """Return the words after `vllm bench serve`; the endpoint's key is not among them.

    Args:
        folder: on the node or in the container, where the result is written.
        run: repetition, from 1: each has a seed and a file of its own.
    """
    key = cell.key
    base = target.base_url.removesuffix("/").removesuffix("/v1")
    words = ["--backend", "openai-chat", "--base-url", base, "--endpoint", "/v1/chat/completions"]
    words += ["--model", target.model, "--served-model-name", target.served_name]
    words += ["--tokenizer", target.tokenizer, "--dataset-name", "random"]
    words += ["--random-input-len", str(key.prompt), "--random-output-len", str(key.output)]
    words += ["--num-prompts", str(cell.requests or REQUESTS), "--seed", str(run)]
    words += ["--num-warmups", "1"]
    if key.request_rate is not None:
        words += ["--request-rate", f"{key.request_rate:g}"]
    else:
        words += ["--max-concurrency", str(key.concurrency)]
    if settings.exact_output:
        words.append("--ignore-eos")
    if settings.temperature is not None:
        words += ["--temperature", f"{settings.temperature:g}"]
    words += ["--percentile-metrics", ",".join(TIMES.values())]
    words += ["--metric-percentiles", ",".join(map(str, PERCENTILES))]
    if goodput := goodput_words(slo):
        words += ["--goodput", *goodput]
    words += ["--disable-tqdm", "--save-result", "--save-detailed"]
    return [*words, "--result-dir", folder, "--result-filename", file_name(cell, run)]


def file_name(cell: PlannedCell, run: int) -> str:
    """Return the name of a repetition's result."""
    return f"{cell.id}.{run}.json"


def goodput_words(slo: Slo | None) -> list[str]:
    """Return the limits that vLLM's goodput knows; it has none for gaps between tokens."""
    if slo is None:
        return []
    known = (("ttft", slo.ttft_ms), ("tpot", slo.tpot_ms), ("e2el", slo.e2el_ms))
    return [f"{name}:{limit:g}" for name, limit in known if limit is not None]


def tool(settings: MeasurementSettings, slo: Slo | None, version: str) -> Tool:
    """Return what the record says of the tool.

    Args:
        version: of vLLM, whose part it is.
    """
    limits = slo.model_dump(exclude_none=True) if slo else {}
    own = {"exact_output": settings.exact_output, "temperature": settings.temperature}
    return Tool(name=NAME, version=version, settings={**own, "slo": limits})


def read_cell(
    cell: PlannedCell, folder: Path, slo: Slo | None, raw: tuple[str, ...] = ()
) -> CellResult:
    """Return a cell's result, from the files of all its repetitions."""
    found = [read_json(folder / file_name(cell, run)) for run in range(1, cell.runs + 1)]
    return parse(cell, found, slo, raw)


def parse(
    cell: PlannedCell,
    runs: Sequence[dict[str, Any] | str],
    slo: Slo | None = None,
    raw: tuple[str, ...] = (),
) -> CellResult:
    """Return a cell's result.

    Args:
        runs: the JSON result of each repetition, or why there is none.
    """
    reasons: list[str] = []
    good: list[Mapping[str, Any]] = []
    for index, data in enumerate(runs, 1):
        if isinstance(data, str):
            reasons.append(f"run {index}: {data}")
            continue
        reasons += [f"run {index}: {why}" for why in _wrong(cell, data)]
        good.append(data)
    if not good:
        return result(cell, reasons=reasons or ["there is no result"], raw=raw)
    metrics, missing = _metrics(good, with_goodput=bool(goodput_words(slo)))
    return result(
        cell,
        metrics=metrics,
        reasons=[*reasons, *missing],
        attention=_attention(metrics, slo, cell),
        raw=raw,
    )


def _wrong(cell: PlannedCell, data: Mapping[str, Any]) -> list[str]:
    wanted, done = cell.requests or REQUESTS, number(data.get("completed"))
    reasons = []
    if done != wanted:
        listed = data.get("errors")
        texts = listed if isinstance(listed, list) else []
        errors = [text for text in texts if isinstance(text, str) and text.strip()]
        why = f": {' '.join(errors[0].split())[:200]}" if errors else ""
        shown = "no" if done is None else f"{done:g}"
        reasons.append(f"{shown} of {wanted} requests were completed{why}")
    lengths = data.get("output_lens")
    if isinstance(lengths, list) and any(length == 0 for length in lengths):
        reasons.append(f"{lengths.count(0)} answers were empty")
    return reasons


def _metrics(
    runs: Sequence[Mapping[str, Any]], *, with_goodput: bool
) -> tuple[dict[MetricName, Metric], list[str]]:
    metrics: dict[MetricName, Metric] = {}
    missing: list[str] = []
    names = RATES | {name: f"mean_{field}_ms" for name, field in TIMES.items()}
    if with_goodput:
        names["goodput"] = "request_goodput"
    for name, field_name in names.items():
        values = [number(run.get(field_name)) for run in runs]
        found = [value for value in values if value is not None]
        if len(found) < len(values):
            missing.append(f"{field_name} has no value")
            continue
        metrics[name] = _metric(found, _percentiles(runs, TIMES.get(name)))
    for name, (field_name, scale) in DRAFTED.items():
        values = [number(run.get(field_name)) for run in runs]
        found = [value * scale for value in values if value is not None]
        if found and len(found) == len(values):
            metrics[name] = _metric(found, {})
    return metrics, missing


def _metric(values: Sequence[float], percentiles: dict[str, float]) -> Metric:
    mean = sum(values) / len(values)
    spread = sum((value - mean) ** 2 for value in values)
    std = (spread / (len(values) - 1)) ** 0.5 if len(values) > 1 else None
    return Metric(mean=mean, std=std, values=tuple(values), percentiles=percentiles)


def _percentiles(runs: Sequence[Mapping[str, Any]], field_name: str | None) -> dict[str, float]:
    """Return the mean of each percentile over the runs."""
    found = {}
    for p in PERCENTILES if field_name else ():
        values = [number(run.get(f"p{p}_{field_name}_ms")) for run in runs]
        known = [value for value in values if value is not None]
        if known and len(known) == len(values):
            found[f"p{p}"] = sum(known) / len(known)
    return found


def _attention(
    metrics: Mapping[MetricName, Metric], slo: Slo | None, cell: PlannedCell
) -> list[str]:
    notes = []
    gaps = metrics.get("itl_ms")
    if slo is not None and slo.itl_ms is not None and gaps is not None:
        worst = gaps.percentiles.get("p99", gaps.mean)
        if worst > slo.itl_ms:
            notes.append(
                f"99 % of gaps between tokens are under {worst:.0f} ms; the limit is "
                f"{slo.itl_ms:g} ms"
            )
    return [*notes, *_too_fast(metrics, cell)]


def _too_fast(metrics: Mapping[MetricName, Metric], cell: PlannedCell) -> list[str]:
    """Return that the server did not keep up with the rate, where chance does not explain it.

    Requests come at random (a Poisson process): the time in which N came scatters by a share of
    1 / sqrt(N). The last one's own time is no part of it.
    """
    rate, count = cell.key.request_rate, cell.requests or REQUESTS
    served, whole = metrics.get("request_throughput"), metrics.get("e2el_ms")
    if rate is None or served is None or whole is None or served.mean <= 0:
        return []
    arrivals_s = count / served.mean - whole.mean / 1e3
    if arrivals_s <= count / rate * (1 + 3 / (count * cell.runs) ** 0.5):
        return []
    return [f"the server kept up with {served.mean:.2f} of {rate:g} requests a second"]
