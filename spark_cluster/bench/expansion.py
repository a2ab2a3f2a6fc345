"""The expansion of a suite: servers in order, the cells of each, how they are measured, how long.

The same suite and recipes give the same ids in the same order, so that a run that was cut can go
on where it ended. An id is made of what is measured, not of its place in the suite: a suite to
which something is added keeps the ids of the others.
"""

from __future__ import annotations

import hashlib
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, groupby, product
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from spark_cluster.bench.record import CellKey, CellResult, Metric, MetricName, Tool
from spark_cluster.bench.suite import USUAL, MeasurementSettings, Pair, Stage, Suite, Sweep, Variant
from spark_cluster.config.recipe import Recipe
from spark_cluster.config.recipe_schema import EngineValue
from spark_cluster.config.schema import Document, Flat, Hidden, Rounded, derived, printed
from spark_cluster.config.yamlfile import table_beside
from spark_cluster.engine.deployment import Deployment
from spark_cluster.errors import Refused, UsageError

if TYPE_CHECKING:
    from jinja2 import Environment

REQUESTS: int = USUAL["requests"]

LONGEST_NAME = 72
"""Characters of the readable part of a setup's id; a cell's id is also a file's name."""


@dataclass(frozen=True)
class PlannedCell(Document):
    """A cell to measure.

    Attributes:
        id: unique in the run; also the name of its raw file.
        runs: repetitions; of an open loop, of the whole cell.
        requests: of a cell of `vllm bench serve` and GuideLLM.
        skip: why it cannot be measured on this server; empty when it can.
    """

    id: str
    setup: str
    key: Flat[CellKey]
    runs: int
    requests: int | None = None
    turn: int = 1
    skip: str = ""


@dataclass(frozen=True)
class PlannedSetup(Document):
    """A server to bring up.

    Attributes:
        id: unique in the run.
        served: the recipe with the variant's changes; None when the recipe was not given.
        skip: why it cannot be brought up; empty when it can.
    """

    id: str
    recipe: str
    tp: int
    replicas: int = 1
    variant: Hidden[Variant] = field(default_factory=Variant)
    served: Hidden[Recipe | None] = None
    skip: str = ""
    variant_label = derived(str, lambda setup: label(setup.variant), key="variant")

    @property
    def each(self) -> int:
        """Nodes that one replica needs."""
        return self.served.nodes_for(self.tp) if self.served is not None else self.tp

    @printed
    def nodes(self) -> int:
        """Nodes that it needs."""
        return self.each * self.replicas


@dataclass(frozen=True)
class Step:
    """A server is brought up, its cells (at least one) are measured, and it is taken down."""

    setup: PlannedSetup
    cells: tuple[PlannedCell, ...]

    @property
    def turn(self) -> int:
        """Of a pair, from 1; the same server has a step for each turn."""
        return self.cells[0].turn

    @property
    def measurable(self) -> tuple[PlannedCell, ...]:
        """The cells that can be measured."""
        return tuple(cell for cell in self.cells if not cell.skip)


@dataclass(frozen=True)
class Expansion:
    """All steps of a suite in order."""

    steps: tuple[Step, ...]

    @property
    def setups(self) -> tuple[PlannedSetup, ...]:
        """Every server once, in the order in which they are first brought up."""
        return tuple({step.setup.id: step.setup for step in self.steps}.values())

    @property
    def cells(self) -> tuple[PlannedCell, ...]:
        """Every cell in order, those that cannot be measured too."""
        return tuple(cell for step in self.steps for cell in step.cells)

    @property
    def nodes(self) -> int:
        """The most nodes that a server needs."""
        return max((s.nodes for s in self.setups if not s.skip), default=0)


def expand(
    suite: Suite,
    recipes: Mapping[str, Recipe] | None = None,
    names: Sequence[str] = (),
    *,
    recipe_of: Callable[[PlannedSetup], Recipe | None] | None = None,
) -> Expansion:
    """Return the steps of a suite.

    What a recipe cannot do (its tensor-parallel sizes, a context longer than its max-model-len) and
    what `bench run` does not measure yet is kept with the reason in `skip`, so that a report can
    say why a figure is missing.

    Args:
        recipes: by name; without one nothing is said of what it can do.
        names: recipes instead of the suite's own.
        recipe_of: gives each server's recipe, by default by the recipe's name; a variant's changes,
            which it may have already, make no difference. A server that it refuses is left out.

    Raises:
        UsageError: the suite names no recipe, and none is given.
        Refused: a recipe is of another kind than chat.
    """
    chosen = tuple(names) or tuple(suite.recipes)
    if not chosen:
        raise UsageError(
            f"suite {suite.name} names no recipe", hint="give one with --recipe, such as lab-paris"
        )
    known = recipes or {}
    _must_generate(known.values())
    find = recipe_of or (lambda setup: known.get(setup.recipe))
    measured: set[str] = set()
    steps = []
    for stage in suite.parts:
        for bare, turn, turns in _setups(suite, stage, chosen):
            setup = _setup(suite, bare, find)
            found = _cells(suite, stage, setup, turn, turns)
            cells = tuple(cell for cell in found if cell.id not in measured)
            measured.update(cell.id for cell in cells)
            if cells:
                steps.append(Step(setup, cells))
    return Expansion(tuple(_joined(steps)))


def _setups(
    suite: Suite, stage: Stage, recipes: Sequence[str]
) -> Iterator[tuple[PlannedSetup, int, int]]:
    """Yield the servers of a stage without their recipes, with a turn and how many there are."""
    replicas = stage.replicas or 1
    for name, tp in product(recipes, stage.tp or ()):
        for variant, turn, turns in _servers(suite):
            id = _setup_id(name, tp, replicas, variant)
            yield PlannedSetup(id, name, tp, replicas, variant), turn, turns


def _must_generate(recipes: Iterable[Recipe]) -> None:
    """Raise Refused for a recipe of another kind than chat: suites measure generated tokens."""
    for recipe in recipes:
        if recipe.kind != "chat":
            raise Refused(
                f"recipe {recipe.name} is of kind {recipe.kind}: suites measure generated tokens, "
                "which such a model does not make",
                hint="in its container `vllm bench serve` measures such models (--backend "
                "openai-embeddings, vllm-rerank or openai-audio)",
            )


def _joined(steps: Sequence[Step]) -> Iterator[Step]:
    """Join steps on one server that follow each other: it is not restarted between stages."""
    for _, group in groupby(steps, lambda step: (step.setup.id, step.turn)):
        first, *others = group
        cells = chain(first.cells, *(step.cells for step in others))
        yield replace(first, cells=tuple(cells))


def _unsupported(suite: Suite, setup: PlannedSetup) -> str:
    """Return why `bench run` does not measure a server yet; empty where it does."""
    engine = setup.served.engine if setup.served is not None else "vllm"
    if suite.kind == "load" and suite.tool == "vllm-bench" and engine != "vllm":
        return f"`vllm bench serve` is a part of vLLM, and this recipe's engine is {engine}"
    if setup.replicas > 1 and setup.each > 1:
        return f"a replica behind the endpoint has one node, and this one takes {setup.each}"
    return ""


def _servers(suite: Suite) -> Iterator[tuple[Variant, int, int]]:
    """Yield variants with the turn and the number of turns."""
    if suite.sweep is not None:
        yield from ((variant, 1, 1) for variant in variants(suite.sweep))
    for pair in suite.pairs:
        yield from _turns(pair)
    if suite.sweep is None and not suite.pairs:
        yield Variant(), 1, 1


def _turns(pair: Pair) -> Iterator[tuple[Variant, int, int]]:
    """Yield A B, B A, A B ...: what drifts over time (heat, say) is shared alike."""
    for turn in range(1, pair.turns + 1):
        for variant in (pair.a, pair.b) if turn % 2 else (pair.b, pair.a):
            yield variant, turn, pair.turns


def _setup(
    suite: Suite, planned: PlannedSetup, find: Callable[[PlannedSetup], Recipe | None]
) -> PlannedSetup:
    """Return a server with its recipe, or why it cannot be served or measured."""
    try:
        if (recipe := find(planned)) is not None:
            recipe.check_size(planned.tp)
            planned = replace(planned, served=varied(recipe, planned.variant))
    except Refused as error:
        return replace(planned, skip=error.message)
    return replace(planned, skip=_unsupported(suite, planned))


_PLAIN = re.compile(r"[a-z0-9.-]+")
_PLAIN_VARIANT = re.compile(r"|([a-z0-9-]+|num_speculative_tokens)=[a-z0-9.]+")


def _setup_id(name: str, tp: int, replicas: int, changes: Variant) -> str:
    """Return an id that a file can have; with a hash where the name alone would be ambiguous."""
    server, variant = f"{name}-tp{tp}" + (f"-x{replicas}" if replicas > 1 else ""), label(changes)
    text = f"{server}-{variant}" if variant else server
    plain = re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")
    is_plain = _PLAIN.fullmatch(server) and _PLAIN_VARIANT.fullmatch(variant)
    if is_plain and len(plain) <= LONGEST_NAME:
        return plain
    digest = hashlib.sha256(text.encode()).hexdigest()[:6]
    return f"{plain[:LONGEST_NAME].rstrip('-.')}-{digest}"


def _cells(
    suite: Suite, stage: Stage, setup: PlannedSetup, turn: int, turns: int
) -> Iterator[PlannedCell]:
    own, more = divmod(stage.runs or 0, turns)
    own += turn <= more
    if not own:
        return
    requests = stage.requests if suite.tool != "llama-benchy" else None
    keys = _keys(stage) if suite.kind == "load" else [CellKey(prompt=0, output=0, kind=suite.kind)]
    for key in keys:
        id = f"{setup.id}.{key_id(key)}" + (f"-t{turn}" if turns > 1 else "")
        skip = setup.skip or _too_long(key, setup.served)
        yield PlannedCell(id, setup.id, key, own, requests, turn, skip)


def _keys(stage: Stage) -> Iterator[CellKey]:
    """Yield the shapes: depth changes slowest, then prompt, output and load."""
    shapes = product(stage.depth or (), stage.prompt or (), stage.output or ())
    rates, levels = stage.request_rate or (), stage.concurrency or ()
    for depth, prompt, output in shapes:
        key = CellKey(prompt=prompt, output=output, depth=depth)
        for rate in rates:
            yield key.model_copy(update={"concurrency": 0, "request_rate": rate})
        for level in () if rates else levels:
            yield key.model_copy(update={"concurrency": level})


def key_id(key: CellKey) -> str:
    """Return a shape as part of a file's name, such as `pp2048-tg128-d4096-c1`."""
    if key.kind != "load":
        return key.kind.replace("_", "-")
    text = f"pp{key.prompt}-tg{key.output}-d{key.depth}"
    if key.request_rate is None:
        text += f"-c{key.concurrency}"
    else:
        text += f"-rate{key.request_rate:g}"
    return f"{text}-ctx" if key.context_prefill else text


def _too_long(key: CellKey, recipe: Recipe | None) -> str:
    limit = recipe.engine_args.get("max-model-len") if recipe is not None else None
    needed = key.depth + key.prompt + key.output
    if isinstance(limit, bool) or not isinstance(limit, int) or needed <= limit:
        return ""
    return f"needs {needed:,} tokens of context, the server has {limit:,} (max-model-len)"


# -- variants --------------------------------------------------------------------------------------


def variants(sweep: Sweep) -> Iterator[Variant]:
    """Yield every combination, the last argument changing fastest."""
    flags = list(sweep.engine_args)
    drafted: list[int | None] = [*sweep.num_speculative_tokens] or [None]
    for *values, tokens in product(*sweep.engine_args.values(), drafted):
        args = dict(zip(flags, values, strict=True))
        yield Variant.model_construct(engine_args=args, num_speculative_tokens=tokens)


def label(variant: Variant) -> str:
    """Return what differs from the recipe, such as `enforce-eager=true`; empty for nothing."""
    parts = [f"{flag}={_text(value)}" for flag, value in sorted(variant.engine_args.items())]
    if variant.num_speculative_tokens is not None:
        parts.append(f"num_speculative_tokens={variant.num_speculative_tokens}")
    parts += [f"{name}={value}" for name, value in sorted(variant.env.items())]
    return " ".join(parts)


def _text(value: EngineValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def varied(recipe: Recipe, variant: Variant) -> Recipe:
    """Return the recipe with a variant's changes.

    Raises:
        Refused: tokens to draft are given, and the recipe has no drafter.
    """
    changed: dict[str, object] = {}
    if variant.engine_args:
        args = {**recipe.engine_args, **variant.engine_args}
        changed["engine_args"] = {flag: value for flag, value in args.items() if value is not False}
        # The recipe's own field would win over the flag.
        if "gpu-memory-utilization" in variant.engine_args:
            changed["gpu_memory_utilization"] = None
    if variant.env:
        changed["env"] = {**recipe.env, **variant.env}
    tokens = variant.num_speculative_tokens
    if tokens == 0:
        changed["drafter"] = None
    elif tokens is not None:
        if recipe.drafter is None:
            raise Refused(
                f"recipe {recipe.name} has no drafter, so num_speculative_tokens cannot be "
                f"{tokens}",
                hint="give a recipe with a drafter, such as gemma4-26b-a4b-fp8-mtp",
            )
        changed["drafter"] = recipe.drafter.model_copy(update={"tokens": tokens})
    return recipe.model_copy(update=changed) if changed else recipe


# -- the duration of a suite, estimated from planned speeds ----------------------------------------

STARTUP_S = 240.0
"""Seconds until a server is ready, where nothing is known of it: a start with compilation took 3
to 5 minutes (source: forum-gemma4-31b-fp8, muninn-gemma4-31b)."""

STOP_S = 30.0
"""Seconds until it is down and its memory is free."""

CELL_S = 12.0
"""Seconds of a cell beyond its requests: the load generator starts, reads the tokenizer and the
book, warms up, asks its question and measures the latency."""

ANSWERS_S = 60.0
"""Seconds of a run of questions (vision, tool calls): eight answers of 50 tokens at 7 tok/s."""

CHECKED_TOKENS = 4000
"""Tokens of the answers to all checks of a server: about 40 requests of 100 tokens."""

SLOWER_PER_REQUEST = 0.05
"""Share by which a request decodes slower for each other one: with four at once the published runs
kept 0.83 to 1.0 of the speed of one (source: forum-gemma4-31b-fp8)."""

ASSUMPTIONS = (
    "each cell warms up once and then repeats its runs",
    "prefills of requests at once take turns; each decodes 5 % slower for each other request",
    "speeds are the plan's, for the cell's depth",
    f"a start takes {STARTUP_S:.0f} s where no other time is known, a stop {STOP_S:.0f} s",
)


@dataclass(frozen=True)
class ServerSpeed:
    """The planned speed of one request that is alone.

    Attributes:
        prefill_tok_s, decode_tok_s: tokens/s.
    """

    prefill_tok_s: float
    decode_tok_s: float


@dataclass(frozen=True)
class Duration:
    """The time that a suite takes.

    Attributes:
        seconds: of all steps whose speeds are known.
        steps: seconds of each step; None where no speed is known.
        unknown: setups without a planned speed.
    """

    seconds: Annotated[float, Rounded()]
    steps: tuple[Annotated[float | None, Rounded()], ...]
    unknown: tuple[str, ...]
    assumptions: tuple[str, ...] = ASSUMPTIONS


Speeds = Callable[[PlannedSetup, int], ServerSpeed | None]
"""Setup and tokens in the context to its planned speed; None where it is not known."""


def estimate(
    expansion: Expansion, speeds: Speeds, settings: MeasurementSettings, *, verify: bool = False
) -> Duration:
    """Return how long the steps take.

    Args:
        verify: each server's answers are checked first.
    """
    checked = CHECKED_TOKENS if verify else 0
    seconds = [_step(step, speeds, settings, checked) for step in expansion.steps]
    unknown = {
        step.setup.id: None
        for step, known in zip(expansion.steps, seconds, strict=True)
        if known is None
    }
    known_s = sum(s for s in seconds if s is not None)
    checks = (f"the checks of a server's answers are {checked:,} tokens",) if verify else ()
    return Duration(known_s, tuple(seconds), tuple(unknown), (*ASSUMPTIONS, *checks))


def _step(step: Step, speeds: Speeds, settings: MeasurementSettings, checked: int) -> float | None:
    total = 0.0
    speed = speeds(step.setup, 0) if checked and step.setup.replicas == 1 else None
    if speed is not None:
        total += checked / speed.decode_tok_s
    for cell in step.measurable:
        seconds = _cell(step.setup, cell, speeds, settings)
        if seconds is None:
            return None
        total += seconds
    return total + STARTUP_S + STOP_S if step.measurable else 0.0


def _cell(
    setup: PlannedSetup, cell: PlannedCell, speeds: Speeds, settings: MeasurementSettings
) -> float | None:
    key = cell.key
    if key.kind != "load":
        return CELL_S + cell.runs * ANSWERS_S
    speed = speeds(setup, key.depth + key.prompt)
    if speed is None:
        return None
    each = max(1, -(-key.concurrency // setup.replicas))
    answer = key.output / speed.decode_tok_s * (1 + SLOWER_PER_REQUEST * (each - 1))
    prefill = (key.prompt + key.depth) / speed.prefill_tok_s
    if cell.requests is not None:
        if key.request_rate is not None:
            one = cell.requests / key.request_rate + prefill + answer
        else:
            one = cell.requests / max(key.concurrency, 1) * (each * prefill + answer)
        return cell.runs * (one + CELL_S)
    one = each * prefill + answer
    if settings.prefix_caching and key.depth:
        one += answer  # llama-benchy lets the context's own request answer too
    return CELL_S + (cell.runs + 1) * one


# -- what a load generator is to a run: the command of a cell, and the meaning of what it leaves ---

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
"""Without them a tokenizer that is not there is looked for on the hub, again and again."""

RUN_S = 3600.0
"""Seconds that a program may take: at 7 tokens a second 25,000 tokens of answers."""


@dataclass(frozen=True)
class At:
    """Where the cells of a step are measured.

    Attributes:
        base_url: of the endpoint, with `/v1`.
        folder: of the step, on the head.
        settings: of the generator's role; None without one.
    """

    suite: Suite
    deployment: Deployment
    base_url: str
    folder: str
    settings: Any = None

    @property
    def server_url(self) -> str:
        """Of the endpoint, without `/v1`."""
        return self.base_url.removesuffix("/v1")

    @property
    def served_name(self) -> str:
        """The model as clients name it."""
        return self.deployment.endpoint.model

    @property
    def model(self) -> str:
        """The model's name on the hub, for the record."""
        return self.deployment.first.recipe.model.name

    @property
    def tokenizer(self) -> str:
        """The folder on the node with `tokenizer.json`."""
        return self.deployment.first.model_path


@dataclass(frozen=True)
class GeneratorRun:
    """A run (repetition) of a cell.

    Attributes:
        prints: file for what it prints on standard output, which is its result; empty where it
            writes its result itself.
    """

    argv: tuple[str, ...]
    prints: str = ""


@dataclass(frozen=True)
class Measurement:
    """How a cell is measured, as `node/measure.py` reads it.

    Attributes:
        env: variables for its programs.
        as_root: its programs are started by root: those in a container.
        questions: that our own program asks; empty for a load generator.
    """

    runs: tuple[GeneratorRun, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    as_root: bool = False
    questions: Mapping[str, Any] = field(default_factory=dict)


def declared() -> dict[str, dict[str, Any]]:
    """Return the load generators by their names, as `generators.toml` explains them."""
    found: dict[str, dict[str, Any]] = table_beside(__file__, "generators.toml")
    return found


@cache
def _templates() -> Environment:
    from jinja2 import Environment, StrictUndefined  # not before something is measured

    made = Environment(undefined=StrictUndefined)  # noqa: S701  (each word by itself)
    made.policies["json.dumps_kwargs"] = {"sort_keys": False}
    return made


class Generator(ABC):
    """A load generator, or what asks questions in its place.

    Attributes:
        name: in `generators.toml`, which declares the rest.
        role: that installs it on the head, and whose settings have `version` and `path`; empty
            where there is nothing to install.
        version: that is read; empty where it is not ours to choose.
        engine: of which it is a part; empty for one that measures any.
    """

    name: ClassVar[str]

    def __init__(self) -> None:
        self.about = declared().get(self.name, {})
        self.role: str = self.about.get("role", "")
        self.version: str = self.about.get("version", "")
        self.engine: str = self.about.get("engine", "")

    def tool(self, suite: Suite) -> Tool:
        """Return what the record says of it; without a version where it is the engine's."""
        settings = suite.settings.model_dump(include=set(self.about["settings"]))
        return Tool(name=self.name, version=self.version, settings=settings)

    def arguments(self, at: At, cell: PlannedCell, **more: Any) -> list[str]:
        """Return the words of its command for a cell.

        Args:
            more: what the templates of words speak of, too.
        """
        settings, slo = at.suite.settings, at.suite.slo
        known = {"at": at, "cell": cell, "key": cell.key, "settings": settings, "slo": slo, **more}
        known |= {"about": self.about, "requests": cell.requests or REQUESTS}
        templates = _templates()
        return [
            templates.from_string(word).render(known)
            for group in self.about["arguments"]
            if templates.compile_expression(group.get("if", "true"))(known)
            for word in group["words"]
        ]

    @abstractmethod
    def measurement(self, at: At, cell: PlannedCell) -> Measurement:
        """Return the commands that measure a cell; each writes into `raw` of the folder only."""

    @abstractmethod
    def results(
        self, suite: Suite, cell: PlannedCell, files: Mapping[str, str]
    ) -> list[CellResult]:
        """Return a cell's results.

        Args:
            files: that it has written, by name, with their text; `ID.log` is what it has printed.
        """

    def limit_s(self, _suite: Suite, _cell: PlannedCell) -> float:
        """Return the seconds that a cell may take, which its runs share."""
        return RUN_S


# -- results ---------------------------------------------------------------------------------------


def metric(values: Sequence[float], percentiles: dict[str, float] | None = None) -> Metric:
    """Return a figure with a value for each run.

    Args:
        values: at least one.
    """
    std = stdev(values) if len(values) > 1 else None
    return Metric(mean=fmean(values), std=std, values=tuple(values), percentiles=percentiles or {})


def result(
    cell: PlannedCell,
    *,
    metrics: dict[MetricName, Metric] | None = None,
    reasons: Sequence[str] = (),
    attention: Sequence[str] = (),
    key: CellKey | None = None,
) -> CellResult:
    """Return a cell's result: failed when there is a reason.

    Args:
        key: of another phase of the cell, which is a cell of its own.
    """
    own = key is None or key == cell.key
    return CellResult(
        id=cell.id if own else f"{cell.id}-ctx",
        setup=cell.setup,
        key=key or cell.key,
        runs=cell.runs,
        status="failed" if reasons else "ok",
        reason="; ".join(dict.fromkeys(reasons)),
        attention=tuple(dict.fromkeys(attention)),
        metrics=metrics or {},
    )
