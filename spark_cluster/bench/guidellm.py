"""GuideLLM 0.8: its command line for a run, and its report.

Closed loops by its profile `concurrent`, open ones by `poisson`. It sends no request before those
that it measures (source: guidellm).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from spark_cluster.bench import vllm_bench
from spark_cluster.bench.expansion import REQUESTS, PlannedCell
from spark_cluster.bench.generator import OFFLINE, At, Generator, Measurement, Run
from spark_cluster.bench.record import CellResult, Tool
from spark_cluster.bench.run_folder import number
from spark_cluster.bench.suite import Suite
from spark_cluster.node.replies import at as found_at
from spark_cluster.node.replies import objects_of

NAME = "guidellm"
VERSION = "0.8.1"

SAMPLES = 20
"""Requests of each kind (answered, failed) that its report keeps whole; figures are of all."""

FIELDS = {
    "ttft": ("time_to_first_token_ms", 1.0),
    "tpot": ("time_per_output_token_ms", 1.0),
    "itl": ("inter_token_latency_ms", 1.0),
    "e2el": ("request_latency", 1e3),
}
"""Times, by vLLM's names: its field, and milliseconds of its unit."""


class GuideLlm(Generator):
    """GuideLLM, in an environment of its own on the head."""

    role = "guidellm"
    version = VERSION

    def tool(self, suite: Suite) -> Tool:
        settings = suite.settings.model_dump(include={"exact_output", "temperature"})
        return Tool(name=NAME, version=VERSION, settings=settings)

    def measurement(self, at: At, cell: PlannedCell) -> Measurement:
        program, each = f"{at.settings.path}/bin/guidellm", range(1, cell.runs + 1)
        runs = tuple(Run((program, *arguments(at, cell, run))) for run in each)
        return Measurement(runs, OFFLINE)

    def limit_s(self, _suite: Suite, cell: PlannedCell) -> float:
        return cell.runs * vllm_bench.open_loop_s(cell)

    def results(
        self, _suite: Suite, cell: PlannedCell, files: Mapping[str, str]
    ) -> list[CellResult]:
        runs = vllm_bench.read_runs(cell, files)
        found = [one if isinstance(one, str) else as_vllm(one) for one in runs]
        return [vllm_bench.parse(cell, found)]


def arguments(at: At, cell: PlannedCell, run: int) -> list[str]:
    """Return the words after `guidellm`, which writes its report below `at.folder`.

    Args:
        run: repetition, from 1: each has a seed and a file of its own.
    """
    settings = at.suite.settings
    key, rate = cell.key, cell.key.request_rate
    body = {"ignore_eos": settings.exact_output, "temperature": settings.temperature}
    extras = {"body": {name: value for name, value in body.items() if value is not None}}
    server = at.base_url.removesuffix("/v1")
    path = f"{at.folder}/raw/{vllm_bench.file_name(cell, run)}"
    options: dict[str, dict[str, Any]] = {
        "backend": {
            "kind": "openai_http", "target": server, "model": at.served_name, "extras": extras
        },
        "profile": {"kind": "concurrent", "streams": [key.concurrency]}
        if rate is None
        else {"kind": "poisson", "rate": [rate]},
        "constraint": {"kind": "max_requests", "count": cell.requests or REQUESTS},
        "tokenizer": {"kind": "hf_auto", "model": at.tokenizer},
        "data": {
            "kind": "synthetic_text", "prompt_tokens": key.prompt, "output_tokens": key.output
        },
        "seed": {"kind": "static", "value": run},
        "metrics": {"kind": "generative", "sample_size": SAMPLES},
        "output": {"kind": "json", "path": path},
    }  # fmt: skip
    words = [word for name, given in options.items() for word in (f"--{name}", json.dumps(given))]
    return ["run", *words, "--disable-console-interactive"]


def as_vllm(report: Mapping[str, Any]) -> dict[str, Any] | str:
    """Return a report as `vllm bench serve` would have written it, or why it cannot be read."""
    version = found_at(report, "metadata", "guidellm_version")
    if version != VERSION:
        return f"written by {NAME} {version}, expected {VERSION}"

    def figure(*keys: str | int) -> Any:
        return found_at(report, "benchmarks", 0, "metrics", *keys)

    failed = found_at(report, "benchmarks", 0, "requests", "errored")
    completed = figure("request_totals", "successful")
    found: dict[str, Any] = {
        "completed": completed,
        "errors": [str(found_at(one, "info", "error")) for one in objects_of(failed)],
        "request_throughput": figure("requests_per_second", "successful", "mean"),
        "output_throughput": figure("output_tokens_per_second", "successful", "mean"),
        "output_lens": [figure("output_token_count", "successful", "min")] if completed else [],
    }
    for name, (field, unit) in FIELDS.items():
        names = {"mean": ("mean",)} | {
            f"p{p}": ("percentiles", f"p{p:02}") for p in vllm_bench.PERCENTILES
        }
        for stem, keys in names.items():
            value = number(figure(field, "successful", *keys))
            found[f"{stem}_{name}_ms"] = None if value is None else value * unit
    return found
