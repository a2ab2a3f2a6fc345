"""Load generators for open loops: requests come at a rate, whether the server keeps up or not.

`vllm bench serve`: its command line for a cell, and its result in the format of vLLM 0.32
(`vllm/benchmarks/serve.py`; source: vllm-source). GuideLLM 0.8: the same, its report read as
vLLM's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from spark_cluster.bench.expansion import (
    OFFLINE,
    REQUESTS,
    RUN_S,
    At,
    Generator,
    GeneratorRun,
    Measurement,
    PlannedCell,
    metric,
    result,
)
from spark_cluster.bench.record import CellResult, Metric, MetricName, Tool, json_of, number
from spark_cluster.bench.suite import Slo, Suite
from spark_cluster.config.folders import CACHES
from spark_cluster.engine.deployment import Server
from spark_cluster.node import confinement, measure
from spark_cluster.node.replies import at as found_at
from spark_cluster.node.replies import objects_of
from spark_cluster.node.store.manifest import whole_folder
from spark_cluster.resources.unit import split_mount

VLLM_BENCH = "vllm-bench"

FIRST_TO_END = "500"
"""Of `--oom-score-adj`: where memory is short, the kernel ends the load before the server."""

CONFINED = (
    "--pull", "never", "--init", "--network", "host", "--gpus", "all",
    "--oom-score-adj", FIRST_TO_END, "--log-driver", "none", "--entrypoint", "",
)  # fmt: skip
"""How the container is made. The GPU is there because vLLM looks for it when it is imported, as in
the server's own container; the program computes nothing on it. DAC_OVERRIDE: root in the container
reads files of others, as the server does; it can write to none of the node's folders."""

PASSED_ON = {"trust-remote-code": (), "tokenizer-mode": ("auto", "slow", "mistral", "custom")}
"""Flags of the server that the load generator must have too, to read the same tokenizer; with the
values that it takes, none for a bare flag."""

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

SLACK_S = 60.0
"""Seconds of a run for Docker, and for loading the tokenizer."""

OUT = "/tmp"  # noqa: S108  (the container's own)
"""Folder for the result in a container."""

BULKY = ("itls", "generated_texts", "input_lens", "start_times", "ttfts")
"""Fields of the detailed result that no figure is taken from."""

WHOLE_BYTES = 4 * 1024 * 1024
"""A larger result is kept without what it says of every token, so that it can be copied."""

PRINTED = f"""\
import json, os, subprocess, sys
path, *argv = sys.argv[1:]
if os.path.lexists(path):
    os.unlink(path)
status = subprocess.run(argv, stdout=sys.stderr).returncode
if status or not os.path.exists(path):
    sys.exit(status or 1)
text = open(path).read()
os.unlink(path)
if len(text) > {WHOLE_BYTES}:
    data = json.loads(text)
    for field in {BULKY}:
        data.pop(field, None)
    text = json.dumps(data)
print(text)
"""
"""Runs the program where it writes its result, and prints that: no file of a container's is read
by root, and it needs no folder of the node."""

DRAFTED: dict[MetricName, tuple[str, float]] = {
    "acceptance": ("spec_decode_acceptance_rate", 0.01),
    "acceptance_length": ("spec_decode_acceptance_length", 1.0),
}
"""Of speculative decoding: the field, and what its figure is multiplied by."""


class VllmBench(Generator):
    """`vllm bench serve` of the engine's image, in a container of its own, or of its environment.

    Nothing of it is secret: the engine answers on the loopback without a key. The container sees
    the model and the recipe's files read-only, no folder that it can write to, reaches no hub, has
    one capability of root (to open any file), and is ended before the server when memory is short.
    """

    engine = "vllm"

    def tool(self, suite: Suite) -> Tool:
        limits = suite.slo.model_dump(exclude_none=True) if suite.slo else {}
        settings = suite.settings
        own = {"exact_output": settings.exact_output, "temperature": settings.temperature}
        return Tool(name=VLLM_BENCH, version="", settings={**own, "slo": limits})

    def measurement(self, at: At, cell: PlannedCell) -> Measurement:
        server = at.deployment.first
        in_container = server.runtime == "docker"
        out = OUT if in_container else f"{at.folder}/home"
        vllm, python = "vllm", "python3"
        if not in_container:
            vllm, python = (f"{server.venv}/bin/{program}" for program in ("vllm", "python"))
        runs = []
        for run in range(1, cell.runs + 1):
            name = file_name(cell, run)
            words = (*vllm_arguments(at, cell, out, run), *_passed_on(server.flags))
            argv = (python, "-c", PRINTED, f"{out}/{name}", vllm, "bench", "serve", *words)
            runs.append(
                GeneratorRun((*container(server), *argv) if in_container else argv, prints=name)
            )
        env = {} if in_container else environment(server, out)
        return Measurement(tuple(runs), env, as_root=in_container)

    def limit_s(self, _suite: Suite, cell: PlannedCell) -> float:
        return cell.runs * (open_loop_s(cell) + SLACK_S)

    def results(
        self, suite: Suite, cell: PlannedCell, files: Mapping[str, str]
    ) -> list[CellResult]:
        return [parse(cell, read_runs(cell, files), suite.slo)]


def open_loop_s(cell: PlannedCell) -> float:
    """Return the seconds that a run may take: longer where its requests come slowly."""
    rate = cell.key.request_rate
    return RUN_S + (2 * (cell.requests or REQUESTS) / rate if rate else 0.0)


def read_runs(cell: PlannedCell, files: Mapping[str, str]) -> list[dict[str, Any] | str]:
    """Return the result of each run, or why there is none, with what the program said last."""
    found = [json_of(files, file_name(cell, run)) for run in range(1, cell.runs + 1)]
    said = f"; it said: {last}" if (last := last_line(files.get(f"{cell.id}.log", ""))) else ""
    return [f"{one}{said}" if isinstance(one, str) else one for one in found]


def last_line(output: str) -> str:
    """Return the last line in which a program says what went wrong; empty for none."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or [""])[-1][:200]


def container(server: Server) -> tuple[str, ...]:
    """Return the words that run a program in a container of the engine's image, up to its own."""
    seen = whole_folder(server.model_path)
    name = ("--name", measure.CONTAINER, "--label", f"{measure.LABEL}=load")
    confined = confinement.options(confinement.READ_OTHERS)
    words = ["docker", "run", "--rm", *name, *confined, *CONFINED]
    for mount in (f"{seen}:{seen}", *server.mounts):
        source, target, _ = split_mount(mount)
        words += ["--mount", f"type=bind,source={source},target={target},readonly"]
    for variable, value in sorted(environment(server, OUT).items()):
        words += ["--env", f"{variable}={value}"]
    return (*words, server.image)


def vllm_arguments(at: At, cell: PlannedCell, folder: str, run: int = 1) -> list[str]:
    """Return the words after `vllm bench serve`; the endpoint's key is not among them.

    Args:
        folder: on the node or in the container, where the result is written.
        run: repetition, from 1: each has a seed and a file of its own.
    """
    settings = at.suite.settings
    key = cell.key
    base = at.base_url.removesuffix("/").removesuffix("/v1")
    words = ["--backend", "openai-chat", "--base-url", base, "--endpoint", "/v1/chat/completions"]
    words += ["--model", at.model, "--served-model-name", at.served_name]
    words += ["--tokenizer", at.tokenizer, "--dataset-name", "random"]
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
    if goodput := goodput_words(at.suite.slo):
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


def parse(
    cell: PlannedCell, runs: Sequence[dict[str, Any] | str], slo: Slo | None = None
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
        if data.get("completed") != 0:  # of no request both programs print zeros
            good.append(data)
    if not good:
        return result(cell, reasons=reasons or ["there is no result"])
    metrics, missing = _metrics(good, with_goodput=bool(goodput_words(slo)))
    attention = _attention(metrics, slo, cell)
    return result(cell, metrics=metrics, reasons=[*reasons, *missing], attention=attention)


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


def _figures(runs: Sequence[Mapping[str, Any]], field: str) -> list[float]:
    """Return a figure of each run; none where one of them has none."""
    known = [value for run in runs if (value := number(run.get(field))) is not None]
    return known if len(known) == len(runs) else []


def _metrics(
    runs: Sequence[Mapping[str, Any]], *, with_goodput: bool
) -> tuple[dict[MetricName, Metric], list[str]]:
    """Return the figures, and which are missing."""
    metrics: dict[MetricName, Metric] = {}
    missing: list[str] = []
    names = RATES | {name: f"mean_{field}_ms" for name, field in TIMES.items()}
    if with_goodput:
        names["goodput"] = "request_goodput"
    for name, field in names.items():
        if found := _figures(runs, field):
            metrics[name] = metric(found, _percentiles(runs, TIMES.get(name)))
        else:
            missing.append(f"{field} has no value")
    for name, (field, scale) in DRAFTED.items():
        if found := _figures(runs, field):
            metrics[name] = metric([value * scale for value in found])
    return metrics, missing


def _percentiles(runs: Sequence[Mapping[str, Any]], field: str | None) -> dict[str, float]:
    """Return the mean of each percentile over the runs."""
    names = PERCENTILES if field else ()
    found = {f"p{p}": _figures(runs, f"p{p}_{field}_ms") for p in names}
    return {name: fmean(values) for name, values in found.items() if values}


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


def environment(server: Server, home: str) -> dict[str, str]:
    """Return the program's variables: the recipe's without its secrets, and caches of its own."""
    caches = {name: f"{home}/{folder}" for name, folder in CACHES.items()}
    venv = {"VIRTUAL_ENV": server.venv} if server.runtime == "venv" else {}
    return {**server.env, **caches, **venv, **OFFLINE, "HOME": home, "VLLM_NO_USAGE_STATS": "1"}


def _passed_on(flags: Mapping[str, Any]) -> list[str]:
    words: list[str] = []
    for name, values in PASSED_ON.items():
        given = flags.get(name)
        if given is True and not values:
            words.append(f"--{name}")
        elif given in values:
            words += [f"--{name}", str(given)]
    return words


# -- GuideLLM --------------------------------------------------------------------------------------
#
# Closed loops by its profile `concurrent`, open ones by `poisson`. It sends no request before those
# that it measures (source: guidellm).
#
# It runs with one worker process: each of several draws its gaps from the same seed, so that of ten
# (its default) ten requests follow each other at the same gap, and 100 requests have 10 gaps: the
# rate is then far from the one asked for (source: guidellm, scheduler/strategies.py of 0.8.1; of 30
# requests at 5 a second, sent to a stand-in of a server, the first ten came within 0.3 s).

GUIDELLM = "guidellm"
GUIDELLM_VERSION = "0.8.1"

ONE_WORKER = {"GUIDELLM__MAX_WORKER_PROCESSES": "1"}
"""Variable of its settings."""

SAMPLES = 20
"""Requests of each kind (answered, failed) that its report keeps whole; figures are of all."""

FIELDS = {
    "ttft": ("time_to_first_token_ms", 1.0),
    "tpot": ("inter_token_latency_ms", 1.0),
    "itl": ("inter_token_latency_ms", 1.0),
    "e2el": ("request_latency", 1e3),
}
"""Times, by vLLM's names: its field, and milliseconds of its unit.

Its `time_per_output_token_ms` includes the time to the first token, which vLLM's TPOT does not. Its
`inter_token_latency_ms` is one average for each request, weighted by tokens: TPOT, and the mean of
ITL, whose percentiles are those of requests (source: guidellm, `schemas/base/request_stats.py`)."""


class GuideLlm(Generator):
    """GuideLLM, in an environment of its own on the head."""

    role = "guidellm"
    version = GUIDELLM_VERSION

    def tool(self, suite: Suite) -> Tool:
        settings = suite.settings.model_dump(include={"exact_output", "temperature"})
        return Tool(name=GUIDELLM, version=GUIDELLM_VERSION, settings=settings)

    def measurement(self, at: At, cell: PlannedCell) -> Measurement:
        program, each = f"{at.settings.path}/bin/guidellm", range(1, cell.runs + 1)
        runs = tuple(GeneratorRun((program, *guidellm_arguments(at, cell, run))) for run in each)
        return Measurement(runs, {**OFFLINE, **ONE_WORKER})

    def limit_s(self, _suite: Suite, cell: PlannedCell) -> float:
        return cell.runs * open_loop_s(cell)

    def results(
        self, _suite: Suite, cell: PlannedCell, files: Mapping[str, str]
    ) -> list[CellResult]:
        runs = read_runs(cell, files)
        found = [one if isinstance(one, str) else as_vllm(one) for one in runs]
        return [parse(cell, found)]


def guidellm_arguments(at: At, cell: PlannedCell, run: int) -> list[str]:
    """Return the words after `guidellm`, which writes its report below `at.folder`.

    Args:
        run: repetition, from 1: each has a seed and a file of its own.
    """
    settings = at.suite.settings
    key, rate = cell.key, cell.key.request_rate
    body = {"ignore_eos": settings.exact_output, "temperature": settings.temperature}
    extras = {"body": {name: value for name, value in body.items() if value is not None}}
    server = at.base_url.removesuffix("/v1")
    path = f"{at.folder}/raw/{file_name(cell, run)}"
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
    if version != GUIDELLM_VERSION:
        return f"written by {GUIDELLM} {version}, expected {GUIDELLM_VERSION}"

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
        names = {"mean": ("mean",)} | {f"p{p}": ("percentiles", f"p{p:02}") for p in PERCENTILES}
        for stem, keys in names.items():
            value = number(figure(field, "successful", *keys))
            found[f"{stem}_{name}_ms"] = None if value is None else value * unit
    return found
