"""Suites by name or path, read and checked."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from spark_cluster.bench.suite_schema import Load, Stage, Suite
from spark_cluster.config import engines
from spark_cluster.config.schema import validate
from spark_cluster.config.secret_text import is_secret_setting, looks_secret
from spark_cluster.config.suggest import did_you_mean
from spark_cluster.config.yamlfile import Key, Problem, load
from spark_cluster.engine.checks.questions import CATALOGUE
from spark_cluster.loader.project import Project

MOST_CELLS = 5000
"""A suite with more is a mistake: at 10 s a cell it would take 14 hours without one request."""


def load_suite(name: str | Path, project: Project) -> Suite:
    """Read a suite by name or path.

    Raises:
        UsageError: there is no suite of that name.
        InvalidFile: the file does not exist or is wrong, with every problem and its line.
    """
    path = project.resolve("suites", name)
    source = load(path, "suite")
    suite = validate(Suite, source)
    problems = list(check(suite))
    if suite.name != path.stem:
        message = f"found '{suite.name}', expected '{path.stem}', the name of the file"
        problems.insert(0, Problem(("name",), message))
    known = project.list("recipes")
    problems += [
        Problem(("recipes", index), f"no recipe '{recipe}'; {did_you_mean(recipe, known)}")
        for index, recipe in enumerate(suite.recipes)
        if recipe not in known
    ]
    if problems:
        raise source.invalid(problems)
    return suite


def check(suite: Suite) -> Iterator[Problem]:
    """Yield what no suite may contain, beyond each field on its own."""
    yield from _tool(suite)
    yield from _questions(suite)
    yield from _variants(suite)
    yield from _stages(suite)
    count = _most_cells(suite)
    if count > MOST_CELLS:
        message = f"{count} cells, expected at most {MOST_CELLS}"
        yield Problem(("stages",) if suite.stages else ("prompt",), message)


def _loads(suite: Suite) -> Iterator[tuple[Key, Load]]:
    yield (), suite
    for index, stage in enumerate(suite.stages):
        yield ("stages", index), stage


def _tool(suite: Suite) -> Iterator[Problem]:
    counts = suite.tool != "llama-benchy"
    for key, part in _loads(suite):
        if not counts and part.request_rate is not None:
            message = "an open loop needs `tool: vllm-bench` or `guidellm`; llama-benchy has none"
            yield Problem((*key, "request_rate"), message)
        if not counts and part.requests is not None:
            message = "found a number of requests, expected none: llama-benchy has runs"
            yield Problem((*key, "requests"), message)
        if part.request_rate is not None and part.concurrency is not None:
            message = "give request_rate (open loop) or concurrency (closed loop), not both"
            yield Problem((*key, "request_rate"), message)
        if counts and any(part.depth or ()):
            message = f"{suite.tool} has no depth; make the prompt longer"
            yield Problem((*key, "depth"), message)
    if suite.slo is not None and suite.tool != "vllm-bench":
        yield Problem(("slo",), f"goodput needs `tool: vllm-bench`; {suite.tool} does not count it")
    if suite.slo is not None and not suite.slo.model_fields_set:
        yield Problem(("slo",), "found no limit, expected one such as ttft_ms: 500")


def _questions(suite: Suite) -> Iterator[Problem]:
    known = [question.id for question in CATALOGUE.get(suite.kind, ())]
    if suite.kind != "load" and suite.tool != "llama-benchy":
        yield Problem(("tool",), f"found {suite.tool}, expected none: {suite.kind} asks questions")
    for index, name in enumerate(suite.questions):
        if suite.kind == "load":
            yield Problem(("questions", index), "a suite of the kind load asks no questions")
        elif name not in known:
            message = f"no question '{name}'; {did_you_mean(name, known, 'questions')}"
            yield Problem(("questions", index), message)


def _variants(suite: Suite) -> Iterator[Problem]:
    if suite.sweep is not None and suite.pairs:
        yield Problem(("pairs",), "give a sweep or pairs, not both: write two suites")
    if suite.sweep is not None:
        for flag, values in suite.sweep.engine_args.items():
            key: Key = ("sweep", "engine_args", flag)
            if not values:
                yield Problem(key, "found no values, expected at least 1")
            for index, value in enumerate(values):
                yield from _flag((*key, index), flag, value)
    for index, pair in enumerate(suite.pairs):
        for side, variant in (("a", pair.a), ("b", pair.b)):
            for flag, value in variant.engine_args.items():
                yield from _flag(("pairs", index, side, "engine_args", flag), flag, value)
        if pair.a == pair.b:
            yield Problem(("pairs", index), "both sides are the same")
    yield from _twice("pairs", [pair.name for pair in suite.pairs])


def _flag(key: Key, flag: str, value: object) -> Iterator[Problem]:
    """Yield why a flag cannot be varied; the message never repeats what may be a secret."""
    owned = engines.dialect(engines.DEFAULT).owned
    if flag in owned and flag != "speculative-config":
        yield Problem(key, f"cannot be varied: {owned[flag]}")
        return
    if flag == "speculative-config":
        yield Problem(key, "give num_speculative_tokens; the drafter itself is the recipe's")
        return
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    if looks_secret(text) or (isinstance(value, str) and is_secret_setting(flag, value)):
        yield Problem(key, "a secret is never written into a suite")


def _stages(suite: Suite) -> Iterator[Problem]:
    yield from _twice("stages", [stage.name for stage in suite.stages])


def _twice(field: str, names: list[str]) -> Iterator[Problem]:
    for index, name in enumerate(names):
        if name in names[:index]:
            yield Problem((field, index, "name"), f"'{name}' is given twice")


def _most_cells(suite: Suite) -> int:
    """Return an upper limit of the number of cells, without making them."""
    variants = 2 * sum(pair.turns for pair in suite.pairs) or 1
    if suite.sweep is not None:
        for values in suite.sweep.engine_args.values():
            variants *= len(values)
        variants *= len(suite.sweep.num_speculative_tokens) or 1
    total = 0
    for stage in suite.stages or [Stage.model_construct(name="")]:
        shapes = 1
        for own, given in (
            (stage.prompt, suite.prompt),
            (stage.output, suite.output),
            (stage.depth, suite.depth),
        ):
            shapes *= len(own or given or (0,))
        levels = stage.request_rate or stage.concurrency or suite.request_rate or suite.concurrency
        total += shapes * len(levels or (1,)) * len(stage.tp or suite.tp)
    return total * variants * max(len(suite.recipes), 1)
