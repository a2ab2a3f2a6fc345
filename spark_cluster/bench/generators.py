"""The tools that measure the cells of a suite."""

from __future__ import annotations

from spark_cluster.bench.answers import Questions
from spark_cluster.bench.benchy import LlamaBenchy
from spark_cluster.bench.generator import Generator
from spark_cluster.bench.guidellm import GuideLlm
from spark_cluster.bench.suite import Suite, ToolName
from spark_cluster.bench.vllm_bench import VllmBench

GENERATORS: dict[ToolName, Generator] = {
    "llama-benchy": LlamaBenchy(),
    "vllm-bench": VllmBench(),
    "guidellm": GuideLlm(),
}
"""Of suites of the kind `load`, by `tool`."""


def of(suite: Suite) -> Generator:
    """Return what measures the cells of a suite."""
    return GENERATORS[suite.tool] if suite.kind == "load" else Questions()
