"""The tools that measure the cells of a suite: llama-benchy, `vllm bench serve`, or questions.

llama-benchy's part is in `run.py` and `benchy.py`; here are the other two, and which it is.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from spark_cluster.bench import answers, benchy, on_node, vllm_bench, vllm_job
from spark_cluster.bench.benchy import Target
from spark_cluster.bench.expansion import PlannedCell
from spark_cluster.bench.on_node import LARGEST_BYTES, SLACK_S, Job
from spark_cluster.bench.reading import read_json
from spark_cluster.bench.record import CellResult, Tool
from spark_cluster.bench.suite_schema import Suite
from spark_cluster.engine.checks import questions
from spark_cluster.engine.deployment import Server
from spark_cluster.node.bench import ask

QUESTIONS = "questions"
"""Name of the tool in the record of a suite of questions."""

CELL_S = 3600.0
"""Seconds that a cell of llama-benchy may take: at 7 tokens a second 25,000 tokens of answers."""

ANSWER_S = 600.0
"""Seconds that an answer may take: 1,024 tokens at 7 tok/s are two and a half minutes."""

LEAST_S = 600.0
"""Seconds that a cell of questions may take at least."""

MOST_S = 4 * 3600.0
"""Seconds that it may take at most."""


def is_llama_benchy(suite: Suite) -> bool:
    """Return True where the cells are llama-benchy's."""
    return suite.kind == "load" and suite.tool == "llama-benchy"


def is_vllm_bench(suite: Suite) -> bool:
    """Return True where the cells are those of `vllm bench serve`."""
    return suite.kind == "load" and suite.tool == "vllm-bench"


def owner(suite: Suite, user: str) -> str:
    """Return whose the folders of a run are on the node, and as whom its cells are run.

    Root's for `vllm bench serve`, which is started in a container: a folder of the login user
    could be given links, which root would follow.

    Args:
        user: the login user.
    """
    return "root" if is_vllm_bench(suite) else user


def tool(suite: Suite, vllm: str = "") -> Tool:
    """Return what the record says of the tool.

    Args:
        vllm: the version of vLLM that serves; empty while none does yet.
    """
    if is_llama_benchy(suite):
        return benchy.tool(suite.settings)
    if is_vllm_bench(suite):
        return vllm_bench.tool(suite.settings, suite.slo, vllm)
    names = [question.id for question in _questions(suite)]
    settings = {"temperature": suite.settings.temperature, "questions": names}
    return Tool(name=QUESTIONS, version=questions.VERSION, settings=settings)


def _questions(suite: Suite) -> tuple[questions.Question, ...]:
    return questions.chosen(suite.kind, tuple(suite.questions))


def job(
    suite: Suite,
    cells: tuple[PlannedCell, ...],
    target: Target,
    server: Server,
    *,
    health: tuple[str, ...],
    folder: str,
    user: str,
) -> Job:
    """Return what the head gets to measure cells that are not llama-benchy's.

    Args:
        health: URLs that answer with 200 while the servers are up.
        folder: of the step, on the node.
        user: the login user.
    """
    if is_vllm_bench(suite):
        sent = vllm_job.files(cells, suite, target, server, folder=folder, user=user)
        return Job(
            folder, health, vllm_job.cells(cells, folder), {}, owner(suite, user), files=sent
        )
    asked = _questions(suite)
    plan = {
        cell.id: {
            "base_url": target.base_url,
            "model": target.served_name,
            "temperature": suite.settings.temperature,
            "answer_s": ANSWER_S,
            "largest_bytes": LARGEST_BYTES,
            "runs": cell.runs,
            "questions": [question.to_dict() for question in asked],
        }
        for cell in cells
    }
    sent = {ask.QUESTIONS: json.dumps({"cells": plan}).encode()}
    made = tuple(
        {
            "id": cell.id,
            "argv": list(on_node.command(folder, on_node.ASK, cell.id)),
            "env": {},
            "result": f"raw/{cell.id}.json",
            "timeout_s": cell_limit_s(suite, cell),
        }
        for cell in cells
    )
    return Job(folder, health, made, {}, user, files=sent)


def cell_limit_s(suite: Suite, cell: PlannedCell) -> float:
    """Return the seconds after which a cell is ended."""
    if is_llama_benchy(suite):
        return CELL_S
    if is_vllm_bench(suite):
        return vllm_job.limit_s(cell)
    return min(MOST_S, LEAST_S + ANSWER_S * cell.runs * len(_questions(suite)))


def limit_s(suite: Suite, cells: Iterable[PlannedCell]) -> float:
    """Return the seconds after which a node has ended all cells of a server."""
    return sum(cell_limit_s(suite, cell) for cell in cells) + SLACK_S


def results(
    suite: Suite, cell: PlannedCell, folder: Path, output: str, raw: tuple[str, ...]
) -> list[CellResult]:
    """Return a cell's results from what its tool wrote.

    Args:
        folder: on the laptop, with the tool's files.
        output: what the tool printed.
        raw: paths of its files, for the record.
    """
    if is_llama_benchy(suite):
        return benchy.read_cell(cell, folder, suite.settings, output=output, raw=raw)
    if not is_vllm_bench(suite):
        return [answers.read_cell(cell, _questions(suite), folder, raw)]
    found: list[dict[str, Any] | str] = [
        read_json(folder / vllm_bench.file_name(cell, run)) for run in range(1, cell.runs + 1)
    ]
    last = _last_line(output)
    if last:
        found = [f"{one}; it said: {last}" if isinstance(one, str) else one for one in found]
    return [vllm_bench.parse(cell, found, suite.slo, raw)]


def _last_line(output: str) -> str:
    """Return the last line in which a program says what went wrong; empty for none."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line.lower()]
    return (errors or lines or [""])[-1][:200]
