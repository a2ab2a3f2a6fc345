"""Suites: what is measured, with which loads, on which servers; read by name and checked."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field

from spark_cluster.bench.record import MetricName
from spark_cluster.config import engines
from spark_cluster.config.project import Project
from spark_cluster.config.recipe_schema import EngineValue, Flag, why_no_engine_value
from spark_cluster.config.schema import Schema, Word, env_name, validate
from spark_cluster.config.secret import is_secret_setting, looks_secret
from spark_cluster.config.yamlfile import Key, Problem, did_you_mean, load
from spark_cluster.engine.tool_checks import CATALOGUE

USUAL: dict[str, Any] = {
    "prompt": [2048], "output": [128], "depth": [0], "concurrency": [1], "requests": 100, "runs": 5,
}  # fmt: skip
"""Of a load, where a suite says nothing. Five runs are the fewest that `compare` judges."""

MOST_CELLS = 5000
"""A suite with more is a mistake: at 10 s a cell it would take 14 hours without one request."""

T = TypeVar("T")

Kind = Literal["load", "vision", "tool_call"]
ToolName = Literal["llama-benchy", "vllm-bench", "guidellm"]


def _unique(values: list[T]) -> list[T]:
    if len(values) > MOST_CELLS:
        raise ValueError(f"found {len(values)} values, expected at most {MOST_CELLS}")
    for index, value in enumerate(values):
        if value in values[:index]:
            raise ValueError(f"{value!r} is given twice")
    return values


def _variant_value(value: Any) -> Any:
    """Accept what a flag of a recipe can be, and `false` for a server without the flag."""
    if value is not False and (why := why_no_engine_value(value)):
        raise ValueError(why)
    return value


VariantValue = Annotated[EngineValue, BeforeValidator(_variant_value)]
Tokens = Annotated[int, Field(ge=1, le=10_000_000)]
Depth = Annotated[int, Field(ge=0, le=10_000_000)]
Rate = Annotated[float, Field(gt=0, le=10_000)]
Levels = Annotated[list[Tokens], Field(min_length=1), AfterValidator(_unique)]
Depths = Annotated[list[Depth], Field(min_length=1), AfterValidator(_unique)]
Rates = Annotated[list[Rate], Field(min_length=1), AfterValidator(_unique)]
Milliseconds = Annotated[float, Field(gt=0)]


class Variant(Schema):
    """Changes of a recipe for one side of a pair."""

    engine_args: dict[Flag, VariantValue] = Field(default={})
    """flags that replace the recipe's; false takes a flag away"""
    num_speculative_tokens: int | None = Field(default=None, ge=0, le=32)
    """tokens drafted in each step; 0 for no drafter"""
    env: dict[Annotated[str, AfterValidator(env_name)], str] = Field(default={})
    """variables of the containers that replace the recipe's"""


class Pair(Schema):
    """Two servers that are compared, measured in turns so that drift meets both alike."""

    name: Word
    """what is compared, such as compile-vs-eager"""
    a: Variant = Variant()
    """the first side; {} is the recipe as it is"""
    b: Variant
    """the second side"""
    turns: int = Field(default=2, ge=1, le=20)
    """how often each side is started; the runs are divided among the turns"""


class Sweep(Schema):
    """Values of engine arguments, each combination of which is a server."""

    engine_args: dict[Flag, Annotated[list[VariantValue], AfterValidator(_unique)]] = Field(
        default={}
    )
    """flag to the values it takes; false is a server without the flag"""
    num_speculative_tokens: Annotated[
        list[Annotated[int, Field(ge=0, le=32)]], AfterValidator(_unique)
    ] = Field(default=[])
    """tokens drafted in each step; 0 for no drafter"""


class Slo(Schema):
    """Limits of a good request, in milliseconds; goodput counts the requests that keep them all."""

    ttft_ms: Milliseconds | None = None
    """time to the first token"""
    tpot_ms: Milliseconds | None = None
    """time per output token after the first"""
    itl_ms: Milliseconds | None = None
    """gap between tokens; vLLM's goodput has no such limit, so it is compared with the 99th
    percentile of the cell"""
    e2el_ms: Milliseconds | None = None
    """time to the last token"""


class MeasurementSettings(Schema):
    """Settings of the load generator that change what it measures."""

    latency_mode: Literal["api", "generation", "none"] = "api"
    """what llama-benchy subtracts from the time to the first response: a request for the list of
    models, a whole one-token answer, or nothing"""
    prefix_caching: bool = False
    """measure with the depth in the server's cache; its prefill is a cell too"""
    exact_output: bool = True
    """let every answer have exactly the tokens of output"""
    temperature: float | None = Field(default=0, ge=0, le=2)
    """of sampling; null for the server's own"""
    coherence: bool = True
    """ask a question first; a wrong answer fails the cell"""


class Load(Schema):
    """The shapes of load, which a stage may give for itself."""

    prompt: Levels | None = None
    """tokens of the prompt (default: 2048)"""
    output: Levels | None = None
    """tokens of the answer (default: 128)"""
    depth: Depths | None = None
    """tokens in the context before it (default: 0)"""
    concurrency: Levels | None = None
    """requests at once (closed loop; default: 1)"""
    request_rate: Rates | None = None
    """requests a second (open loop, tool: vllm-bench or guidellm); takes the place of
    concurrency"""
    requests: int | None = Field(default=None, ge=1, le=1_000_000)
    """requests of a cell of vllm-bench and guidellm (default: 100)"""
    runs: int | None = Field(default=None, ge=1, le=1000)
    """repetitions of each cell (default: 5, the fewest for a verdict)"""


class Stage(Load):
    """A part of a suite, measured in order; what it does not say is the suite's."""

    name: str = Field(min_length=1, max_length=60)
    """what it is, for people"""
    tp: Levels | None = None
    """tensor-parallel sizes (default: the suite's)"""
    replicas: int | None = Field(default=None, ge=1, le=64)
    """servers at once (default: the suite's)"""


class Suite(Load):
    """The whole file."""

    name: Word
    """the file's name without .yaml"""
    description: str = ""
    """what it answers, in a line or two"""
    kind: Kind = "load"
    """load: speed; vision, tool_call: a table of answers that are right or wrong"""
    tool: ToolName = "llama-benchy"
    """load generator: llama-benchy (closed loop), vllm-bench (`vllm bench serve` of the image: open
    loop, percentiles, goodput) or guidellm (open loop, percentiles)"""
    questions: Annotated[list[str], AfterValidator(_unique)] = Field(default=[])
    """of vision and tool_call: which questions, by name (default: all)"""
    recipes: Annotated[list[Word], AfterValidator(_unique)] = Field(default=[])
    """what is served, by name; none: the one that the command names"""
    tp: Levels = Field(default=[1])
    """tensor-parallel sizes, a node each"""
    replicas: int = Field(default=1, ge=1, le=64)
    """servers at once, a node each, behind the endpoint that is put under load"""
    slo: Slo | None = None
    """limits for goodput (tool: vllm-bench)"""
    settings: MeasurementSettings = MeasurementSettings()
    """settings of the load generator"""
    verify: bool = False
    """check each server's answers as `verify` does before it is measured; those of replicas through
    the endpoint in front of them"""
    sweep: Sweep | None = None
    """values of engine arguments to go over"""
    pairs: list[Pair] = Field(default=[])
    """servers to compare, measured in turns"""
    stages: list[Stage] = Field(default=[])
    """parts in order, such as one node, two nodes, two replicas"""
    headline: MetricName | None = None
    """the figure to show first (default: tg_tps, or goodput)"""
    sources: list[str] = Field(default=[])
    """what it reproduces"""

    @property
    def parts(self) -> Iterator[Stage]:
        """The stages with all that they take from the suite; one where it has none."""
        own = USUAL | self.model_dump(include={*Stage.model_fields}, exclude_none=True)
        for stage in self.stages or [Stage.model_construct()]:
            given = stage.model_dump(exclude_none=True)
            closed = {"request_rate": None} if "concurrency" in given else {}
            yield Stage.model_construct(**own | closed | given)


# -- reading ---------------------------------------------------------------------------------------


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
    yield from _twice("stages", [stage.name for stage in suite.stages])
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
    for part in suite.parts:
        lists = (part.prompt, part.output, part.depth, part.request_rate or part.concurrency)
        total += math.prod(len(values or ()) for values in (*lists, part.tp))
    return total * variants * max(len(suite.recipes), 1)


def canonical(suite: Suite) -> str:
    """Return the suite as it is, for the record: two that mean the same have the same text."""
    return json.dumps(suite.model_dump(mode="json", exclude_none=True), sort_keys=True)
