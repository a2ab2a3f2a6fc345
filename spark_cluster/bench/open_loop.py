"""Load generators for open loops: requests come at a rate, whether the server keeps up or not.

`vllm bench serve`, and GuideLLM, whose report is read as vLLM's. Both are called once for each run
of a cell, with a seed and a file of its own.
"""

from __future__ import annotations

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
    declared,
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

_VLLM = declared()["vllm-bench"]
PERCENTILES: list[int] = _VLLM["percentiles"]
TIMES: dict[MetricName, str] = _VLLM["times"]
RATES: dict[MetricName, str] = _VLLM["rates"]

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


class OpenLoop(Generator):
    """A load generator that is called once for each run."""

    slack_s = 0.0

    def limit_s(self, _suite: Suite, cell: PlannedCell) -> float:
        """Return the seconds of a cell: more where its requests come slowly."""
        rate = cell.key.request_rate
        arrivals_s = 2 * (cell.requests or REQUESTS) / rate if rate else 0.0
        return cell.runs * (RUN_S + arrivals_s + self.slack_s)

    def results(
        self, suite: Suite, cell: PlannedCell, files: Mapping[str, str]
    ) -> list[CellResult]:
        found = [json_of(files, file_name(cell, run)) for run in range(1, cell.runs + 1)]
        said = f"; it said: {last}" if (last := last_line(files.get(f"{cell.id}.log", ""))) else ""
        runs = [f"{one}{said}" if isinstance(one, str) else self.as_vllm(one) for one in found]
        return [parse(cell, runs, suite.slo)]

    def as_vllm(self, report: Mapping[str, Any]) -> Mapping[str, Any] | str:
        """Return a result as `vllm bench serve` writes it, or why it cannot be read."""
        return report


class VllmBench(OpenLoop):
    """`vllm bench serve` of the engine's image, in a container of its own, or of its environment.

    Nothing of it is secret: the engine answers on the loopback without a key. The container sees
    the model and the recipe's files read-only, no folder that it can write to, reaches no hub, has
    one capability of root (to open any file), and is ended before the server when memory is short.
    """

    name = "vllm-bench"
    slack_s = SLACK_S

    def tool(self, suite: Suite) -> Tool:
        found = super().tool(suite)
        limits = suite.slo.model_dump(exclude_none=True) if suite.slo else {}
        return found.model_copy(update={"settings": {**found.settings, "slo": limits}})

    def measurement(self, at: At, cell: PlannedCell) -> Measurement:
        server = at.deployment.first
        in_container = server.recipe.runtime == "docker"
        out = OUT if in_container else f"{at.folder}/home"
        vllm, python = "vllm", "python3"
        if not in_container:
            vllm, python = (f"{server.venv}/bin/{program}" for program in ("vllm", "python"))
        runs = []
        for run in range(1, cell.runs + 1):
            about = {"file": file_name(cell, run), "folder": out, "flags": server.flags}
            words = self.arguments(at, cell, run=run, goodput=has_goodput(at.suite.slo), **about)
            argv = (python, "-c", PRINTED, f"{out}/{about['file']}", vllm, *words)
            inside = container(server) if in_container else ()
            runs.append(GeneratorRun((*inside, *argv), prints=file_name(cell, run)))
        env = {} if in_container else environment(server, out)
        return Measurement(tuple(runs), env, as_root=in_container)


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
    words = ["docker", "run", "--rm", *name, *confined, *_VLLM["container"]]
    for mount in (f"{seen}:{seen}", *server.mounts):
        source, target, _ = split_mount(mount)
        words += ["--mount", f"type=bind,source={source},target={target},readonly"]
    for variable, value in sorted(environment(server, OUT).items()):
        words += ["--env", f"{variable}={value}"]
    return (*words, server.image)


def file_name(cell: PlannedCell, run: int) -> str:
    """Return the name of a repetition's result."""
    return f"{cell.id}.{run}.json"


def has_goodput(slo: Slo | None) -> bool:
    """Return whether there is a limit that vLLM's goodput knows: it has none for gaps."""
    return slo is not None and any((slo.ttft_ms, slo.tpot_ms, slo.e2el_ms))


def parse(
    cell: PlannedCell, runs: Sequence[Mapping[str, Any] | str], slo: Slo | None = None
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
    metrics, missing = _metrics(good, with_goodput=has_goodput(slo))
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
    for name, (field, scale) in _VLLM["drafted"].items():
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
    venv = {"VIRTUAL_ENV": server.venv} if server.recipe.runtime == "venv" else {}
    return {**server.env, **caches, **venv, **OFFLINE, "HOME": home, "VLLM_NO_USAGE_STATS": "1"}


class GuideLlm(OpenLoop):
    """GuideLLM, in an environment of its own on the head.

    It sends no request before those that it measures (source: guidellm).
    """

    name = "guidellm"

    def measurement(self, at: At, cell: PlannedCell) -> Measurement:
        settings, program = at.suite.settings, f"{at.settings.path}/bin/guidellm"
        body = {"ignore_eos": settings.exact_output, "temperature": settings.temperature}
        sent = {name: value for name, value in body.items() if value is not None}
        words = (
            self.arguments(at, cell, run=run, file=file_name(cell, run), body=sent)
            for run in range(1, cell.runs + 1)
        )
        runs = tuple(GeneratorRun((program, *each)) for each in words)
        return Measurement(runs, {**OFFLINE, **self.about["env"]})

    def as_vllm(self, report: Mapping[str, Any]) -> dict[str, Any] | str:
        """Return a report as `vllm bench serve` would have written it, or why it cannot be read."""
        version = found_at(report, "metadata", "guidellm_version")
        if version != self.version:
            return f"written by {self.name} {version}, expected {self.version}"

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
        shares = {f"p{p}": ("percentiles", f"p{p:02}") for p in PERCENTILES}
        for name, (field, unit) in self.about["times"].items():
            for stem, keys in {"mean": ("mean",), **shares}.items():
                value = number(figure(field, "successful", *keys))
                found[f"{stem}_{name}_ms"] = None if value is None else value * unit
        return found
