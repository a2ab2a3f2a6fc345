"""The sections of a suite file: what is measured, with which loads, on which servers."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field

from spark_cluster.bench.record import MetricName
from spark_cluster.config.fields import Word, env_name
from spark_cluster.config.recipe_schema import EngineValue, Flag, why_no_engine_value
from spark_cluster.config.schema import Schema

T = TypeVar("T")

Kind = Literal["load", "vision", "tool_call"]
ToolName = Literal["llama-benchy", "vllm-bench", "guidellm"]


def _unique(values: list[T]) -> list[T]:
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
Milliseconds = Annotated[float, Field(gt=0)]


class Variant(Schema):
    """Changes of a recipe for one side of a pair."""

    engine_args: dict[Flag, VariantValue] = Field(
        default={}, description="flags that replace the recipe's; false takes a flag away"
    )
    num_speculative_tokens: int | None = Field(
        default=None, ge=0, le=32, description="tokens drafted in each step; 0 for no drafter"
    )
    env: dict[Annotated[str, AfterValidator(env_name)], str] = Field(
        default={}, description="variables of the containers that replace the recipe's"
    )


class Pair(Schema):
    """Two servers that are compared, measured in turns so that drift meets both alike."""

    name: Word = Field(description="what is compared, such as compile-vs-eager")
    a: Variant = Field(default=Variant(), description="the first side; {} is the recipe as it is")
    b: Variant = Field(description="the second side")
    turns: int = Field(
        default=2, ge=1, le=20,
        description="how often each side is started; the runs are divided among the turns",
    )  # fmt: skip


class Sweep(Schema):
    """Values of engine arguments, each combination of which is a server."""

    engine_args: dict[Flag, Annotated[list[VariantValue], AfterValidator(_unique)]] = Field(
        default={}, description="flag to the values it takes; false is a server without the flag"
    )
    num_speculative_tokens: Annotated[
        list[Annotated[int, Field(ge=0, le=32)]], AfterValidator(_unique)
    ] = Field(default=[], description="tokens drafted in each step; 0 for no drafter")


class Slo(Schema):
    """Limits of a good request, in milliseconds; goodput counts the requests that keep them all."""

    ttft_ms: Milliseconds | None = Field(default=None, description="time to the first token")
    tpot_ms: Milliseconds | None = Field(
        default=None, description="time per output token after the first"
    )
    itl_ms: Milliseconds | None = Field(
        default=None,
        description="gap between tokens; vLLM's goodput has no such limit, so it is compared with "
        "the 99th percentile of the cell",
    )
    e2el_ms: Milliseconds | None = Field(default=None, description="time to the last token")


class MeasurementSettings(Schema):
    """Settings of the load generator that change what it measures."""

    latency_mode: Literal["api", "generation", "none"] = Field(
        default="api",
        description="what llama-benchy subtracts from the time to the first response: a request "
        "for the list of models, a whole one-token answer, or nothing",
    )
    prefix_caching: bool = Field(
        default=False,
        description="measure with the depth in the server's cache; its prefill is a cell too",
    )
    exact_output: bool = Field(
        default=True, description="let every answer have exactly the tokens of output"
    )
    temperature: float | None = Field(
        default=0, ge=0, le=2, description="of sampling; null for the server's own"
    )
    coherence: bool = Field(
        default=True, description="ask a question first; a wrong answer fails the cell"
    )


class Load(Schema):
    """The shapes of load, which a stage may give for itself."""

    prompt: Annotated[list[Tokens], AfterValidator(_unique)] | None = Field(
        default=None, min_length=1, description="tokens of the prompt (default: 2048)"
    )
    output: Annotated[list[Tokens], AfterValidator(_unique)] | None = Field(
        default=None, min_length=1, description="tokens of the answer (default: 128)"
    )
    depth: Annotated[list[Depth], AfterValidator(_unique)] | None = Field(
        default=None, min_length=1, description="tokens in the context before it (default: 0)"
    )
    concurrency: Annotated[list[Tokens], AfterValidator(_unique)] | None = Field(
        default=None, min_length=1, description="requests at once (closed loop; default: 1)"
    )
    request_rate: Annotated[list[Rate], AfterValidator(_unique)] | None = Field(
        default=None,
        min_length=1,
        description="requests a second (open loop, tool: vllm-bench or guidellm); takes the place "
        "of concurrency",
    )
    requests: int | None = Field(
        default=None, ge=1, le=1_000_000,
        description="requests of a cell of vllm-bench and guidellm (default: 100)",
    )  # fmt: skip
    runs: int | None = Field(
        default=None, ge=1, le=1000,
        description="repetitions of each cell (default: 5, the fewest for a verdict)",
    )  # fmt: skip


class Stage(Load):
    """A part of a suite, measured in order; what it does not say is the suite's."""

    name: str = Field(min_length=1, max_length=60, description="what it is, for people")
    tp: Annotated[list[Tokens], AfterValidator(_unique)] | None = Field(
        default=None, min_length=1, description="tensor-parallel sizes (default: the suite's)"
    )
    replicas: int | None = Field(
        default=None, ge=1, le=64, description="servers at once (default: the suite's)"
    )


class Suite(Load):
    """The whole file."""

    name: Word = Field(description="the file's name without .yaml")
    description: str = Field(default="", description="what it answers, in a line or two")
    kind: Kind = Field(
        default="load",
        description="load: speed; vision, tool_call: a table of answers that are right or wrong",
    )
    tool: ToolName = Field(
        default="llama-benchy",
        description="load generator: llama-benchy (closed loop), vllm-bench (`vllm bench serve` of "
        "the image: open loop, percentiles, goodput) or guidellm (open loop, percentiles)",
    )
    questions: Annotated[list[str], AfterValidator(_unique)] = Field(
        default=[], description="of vision and tool_call: which questions, by name (default: all)"
    )
    recipes: Annotated[list[Word], AfterValidator(_unique)] = Field(
        default=[], description="what is served, by name; none: the one that the command names"
    )
    tp: Annotated[list[Tokens], AfterValidator(_unique)] = Field(
        default=[1], min_length=1, description="tensor-parallel sizes, a node each"
    )
    replicas: int = Field(
        default=1,
        ge=1,
        le=64,
        description="servers at once, a node each, behind the endpoint that is put under load",
    )
    slo: Slo | None = Field(default=None, description="limits for goodput (tool: vllm-bench)")
    settings: MeasurementSettings = Field(
        default=MeasurementSettings(), description="settings of the load generator"
    )
    verify: bool = Field(
        default=False,
        description="check each server's answers as `verify` does before it is measured; those of "
        "replicas through the endpoint in front of them",
    )
    sweep: Sweep | None = Field(default=None, description="values of engine arguments to go over")
    pairs: list[Pair] = Field(default=[], description="servers to compare, measured in turns")
    stages: list[Stage] = Field(
        default=[], description="parts in order, such as one node, two nodes, two replicas"
    )
    headline: MetricName | None = Field(
        default=None, description="the figure to show first (default: tg_tps, or goodput)"
    )
    sources: list[str] = Field(default=[], description="what it reproduces")
