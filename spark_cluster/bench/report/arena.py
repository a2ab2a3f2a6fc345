"""Spark Arena's submission files: one folder for each setup. source: sparkrun"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import shlex
from collections.abc import Iterator
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import LiteralScalarString

from spark_cluster.bench.record import Setup
from spark_cluster.bench.report.cells import Results
from spark_cluster.bench.report.formats import file_name
from spark_cluster.bench.report.plots_nodes import from_datetime
from spark_cluster.bench.report.tables import benchy_rows

METRICS = ("t_s", "t_s_req", "peak_ts", "peak_ts_req", "ttfr", "est_ppt", "e2e_ttft")
COLUMNS = ("model", "test_name", *(f"{m}_{part}" for m in METRICS for part in ("mean", "std")))
"""Of llama-benchy's CSV, which is what a submission holds."""

RUNTIMES = {("vllm", "ray"): "vllm-ray", ("vllm", "mp"): "vllm-distributed"}
"""sparkrun's names for an engine and its executor."""

ENGINES = {"vllm": "vllm serve", "sglang": "python -m sglang.launch_server --model-path"}


def submissions(results: Results) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each file; setups without a cell have none."""
    used: set[str] = set()
    for setup in results.setups:
        if not results.cells(setup):
            continue
        name = file_name(setup.id)
        while name.lower() in used:
            name += "-"
        used.add(name.lower())
        recipe = _recipe(results, setup)
        yield f"arena/{name}/recipe.yaml", recipe
        yield f"arena/{name}/benchmark.csv", _csv(results, setup)
        metadata = json.dumps(_metadata(results, setup, recipe), indent=2)
        yield f"arena/{name}/metadata.json", f"{metadata}\n"


def _csv(results: Results, setup: Setup) -> str:
    cells = results.cells(setup)
    several = any(cell.key.concurrency > 1 for cell in cells)
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(COLUMNS)
    for cell in cells:
        for test, metrics in benchy_rows(cell, concurrency=several):
            figures = [value for m in metrics for value in ((m.mean, m.std) if m else (None, None))]
            writer.writerow([_no_formula(setup.model), test, *figures])
    return out.getvalue()


def _no_formula(text: str) -> str:
    """Text that a spreadsheet does not compute."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t") else text


def _recipe(results: Results, setup: Setup) -> str:
    """The recipe in sparkrun's form, which is the one that Spark Arena shows."""

    nodes = [node for node in results.record.nodes if node.name in setup.nodes]
    environment = dict(nodes[0].environment) if nodes else {}
    for node in nodes[1:]:  # what is of one node only is no part of a recipe
        environment = {k: v for k, v in environment.items() if node.environment.get(k) == v}
    document = {
        "recipe_version": "2",
        "name": setup.recipe,
        "model": setup.model,
        **({"model_revision": setup.model_revision} if setup.model_revision else {}),
        "runtime": RUNTIMES.get((setup.engine, setup.executor), setup.engine),
        "min_nodes": setup.tp,
        "container": _image(setup),
        "defaults": {"tensor_parallel": setup.tp},
        "env": environment,
        "command": LiteralScalarString(f"{engine_command(setup)}\n"),
    }
    out = io.StringIO()
    yaml = YAML()
    yaml.width = 10_000
    yaml.dump(document, out)
    return out.getvalue()


def _image(setup: Setup) -> str:
    """The image by the digest that others can pull it by, where there is one."""
    return setup.image_repo_digest or setup.image_digest


def _metadata(results: Results, setup: Setup, recipe: str) -> dict[str, Any]:
    record = results.record
    finished = record.finished
    took = from_datetime(finished) - from_datetime(record.started) if finished else None
    return {
        "recipe": {
            "name": setup.recipe,
            "qualified_name": setup.recipe,
            "type": "spark-cluster",
            "model": setup.model,
            "hf_model": setup.model,
            "container": _image(setup),
            "container_pinned": "@sha256:" in _image(setup),
            "runtime": setup.engine,
            "hash": hashlib.sha256(recipe.encode()).hexdigest(),
        },
        "timing": {
            "start": record.started.isoformat(),
            "end": finished.isoformat() if finished else None,
            "duration": took,
        },
        "cluster": {
            "node_count": len(setup.nodes),
            "tensor_parallel": setup.tp,
            "replicas": setup.replicas,
        },
        "benchmark": {
            "framework": record.tool.name,
            "framework_version": record.tool.version,
            "profile": record.suite,
            "args": {
                "latency_mode": record.tool.latency_mode,
                "prefix_caching": record.tool.prefix_caching,
                **record.tool.settings,
            },
        },
        "model": {
            "revision": setup.model_revision,
            "quantization": setup.quantization,
            "kv_dtype": setup.kv_cache_dtype,
        },
        "runtime_info": dict(setup.versions),
    }


def engine_command(setup: Setup) -> str:
    """The engine's command line, an argument a line."""
    program = ENGINES.get(setup.engine, setup.engine)
    lines = [f"{program} {shlex.quote(setup.model)}"]
    for flag in setup.flags:
        if flag.startswith("--") or len(lines) == 1:
            lines.append(shlex.quote(flag))
        else:
            lines[-1] += f" {shlex.quote(flag)}"
    return " \\\n  ".join(lines)
