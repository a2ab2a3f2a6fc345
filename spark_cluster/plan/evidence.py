"""What was measured of a configuration, by the user or by others: shown with each prediction."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Literal

from spark_cluster.config.launch import Launch
from spark_cluster.config.schema import Rounded
from spark_cluster.models.naming import table
from spark_cluster.plan.estimate import Estimate
from spark_cluster.plan.serving import ServingSetup

SPREAD = 0.10
"""Two owners with the same settings differ by about this much, as a share."""

SHORT = 4096
"""Contexts up to this many tokens, or up to four times what is asked, count as alike: they change
the speeds of what was measured by a few percent."""


@dataclass(frozen=True)
class ComparedEvidence:
    """Evidence next to a prediction, as `--json` prints it.

    Attributes:
        own: by the user's own runs.
        low, high: tokens/s of one request.
        contradicts_prediction: nothing that was measured lies in the predicted range.
    """

    own: bool
    low: Annotated[float, Rounded(2)]
    high: Annotated[float, Rounded(2)]
    contradicts_prediction: bool
    sources: tuple[PublishedSource, ...]


@dataclass(frozen=True)
class Evidence:
    """Tokens/s of one request as measured.

    Attributes:
        own: by the user's own runs.
        sources: where it was published; for own runs their folders.
    """

    low: float
    high: float
    sources: tuple[PublishedSource, ...]
    own: bool = False

    @property
    def text(self) -> str:
        """As it is shown: `measured by others: 76 to 80 tok/s (2 sources)`."""
        who = "here" if self.own else "by others"
        digits = 0 if self.low >= 20 else 1
        low, high = f"{self.low:.{digits}f}", f"{self.high:.{digits}f}"
        span = low if low == high else f"{low} to {high}"
        kind = "run" if self.own else "source"
        count = len(self.sources)
        return f"measured {who}: {span} tok/s ({count} {kind}{'s' if count > 1 else ''})"

    @property
    def range(self) -> tuple[float, float]:
        """The range that a further measurement would lie in."""
        return self.low * (1 - SPREAD), self.high * (1 + SPREAD)

    def contradicts(self, predicted: Estimate) -> bool:
        """Return whether nothing that was measured lies in the predicted range."""
        return self.high < predicted.low or self.low > predicted.high

    def beside(self, predicted: Estimate) -> ComparedEvidence:
        """Return it next to a prediction."""
        return ComparedEvidence(
            self.own, self.low, self.high, self.contradicts(predicted), self.sources
        )


def by_others(
    launch: Launch, serving: ServingSetup, *, users: int, context: float, drafted: int
) -> Evidence | None:
    """Return what others measured of the same model, quantization, nodes, users and drafting.

    Args:
        users: requests at a time.
        context: tokens in the cache of each.
        drafted: tokens drafted in a step, 0 without a drafter.
    """
    names = {name.casefold() for name in (launch.model, launch.base) if name}
    most = max(SHORT, 4 * context)
    found = [
        (point.each, run.source)
        for run in measured_runs()
        if {run.model.casefold(), run.shape.casefold()} & names
        if bool(run.drafted) == bool(drafted) and _is_alike(run, serving)
        for point in run.points
        if point.metric != "ttfr_ms" and point.users == users
        if context / 8 <= point.context <= most
    ]
    if not found:
        return None
    lows, highs = zip(*(each for each, _ in found), strict=True)
    sources = tuple({source.key: source for _, source in found}.values())
    return Evidence(min(lows), max(highs), sources)


def said(evidence: Evidence, predicted: Estimate) -> str:
    """Return the line that is shown, with a warning where the two contradict each other."""
    if not evidence.contradicts(predicted):
        return evidence.text
    return f"{evidence.text}, which contradicts the prediction: trust the measurement"


def _is_alike(run: MeasuredRun, serving: ServingSetup) -> bool:
    formats = {run.quantization.replace("-online", ""), serving.quantization.replace("-online", "")}
    return (
        not run.excluded
        and len(formats) == 1
        and run.tp == serving.tp
        and serving.data_parallel == 1
        and run.engine == serving.engine
        and set(run.mxfp4_layers) == set(serving.mxfp4_layers)
        and (run.transport == "socket") == serving.sockets
    )


def of_own(figures: Sequence[tuple[float, str]]) -> Evidence | None:
    """Return the evidence of own runs.

    Args:
        figures: tokens/s of one request, and the run that it is of.
    """
    if not figures:
        return None
    speeds = [figure for figure, _ in figures]
    runs = {name: PublishedSource(name, name, "") for _, name in figures}
    return Evidence(min(speeds), max(speeds), tuple(runs.values()), own=True)


# Speeds that others measured on DGX Sparks, each with its source (`plan/data`).

Metric = Literal["decode_tok_s", "decode_total_tok_s", "ttfr_ms"]


@dataclass(frozen=True)
class PublishedSource:
    """Where a measurement was published.

    Attributes:
        link: empty where only the title is known.
    """

    key: str
    title: str
    link: str


@dataclass(frozen=True)
class MeasuredPoint:
    """A figure of a run.

    Attributes:
        low, high: equal, except where the source gives a range; in the unit of the metric.
        context: tokens in the cache of a request in the middle of its answer.
        prompt: tokens of the prompt (`ttfr_ms`) that are new; cached: those before them.
        users: requests at a time.
        accepted_share: of all drafted tokens; None without a drafter, or where it is not said.
    """

    metric: Metric
    low: float
    high: float
    context: int = 0
    prompt: int = 0
    cached: int = 0
    users: int = 1
    accepted_share: float | None = None

    @property
    def value(self) -> float:
        """The figure, or the middle of its range."""
        return (self.low + self.high) / 2

    @property
    def each(self) -> tuple[float, float]:
        """Lowest and highest tokens/s of one request."""
        share = self.users if self.metric == "decode_total_tok_s" else 1
        return self.low / share, self.high / share


@dataclass(frozen=True)
class MeasuredRun:
    """A server that others measured.

    Attributes:
        model: repository on the hub; `shape`: the model whose shape it has.
        engine, version: as the source says it.
        transport: `rdma` or `socket`, between several nodes.
        drafted: tokens drafted in a step; 0 without a drafter. own_head: by the model's own MTP
            layers; drafts_at_once: in one pass (DFlash, DSpark).
        batched_tokens: --max-num-batched-tokens, where it is said.
        unpacked: its kernels unpack quantized weights (Marlin).
        held_out: never fitted to.
        excluded: why it is neither compared with predictions nor shown; empty when it is.
        no_shape: the model's shape is not at hand, so that it is shown and not compared.
    """

    id: str
    model: str
    shape: str
    quantization: str
    kv_dtype: str
    engine: str
    tp: int
    source: PublishedSource
    points: tuple[MeasuredPoint, ...]
    version: str = ""
    transport: str = ""
    drafted: int = 0
    own_head: bool = False
    drafts_at_once: bool = False
    batched_tokens: int = 0
    unpacked: bool = False
    mxfp4_layers: tuple[str, ...] = ()
    expert_parallel: bool = False
    eager: bool = False
    held_out: bool = False
    excluded: str = ""
    no_shape: bool = False
    note: str = ""


@cache
def measured_runs() -> tuple[MeasuredRun, ...]:
    """Return all runs, in the order of the file."""
    data = table("measurements", "plan")
    sources = {key: PublishedSource(key, **row) for key, row in data["sources"].items()}
    return tuple(_run(row, sources[row["source"]]) for row in data["runs"])


def _run(row: dict[str, Any], source: PublishedSource) -> MeasuredRun:
    points, layers = tuple(map(_point, row["points"])), tuple(row.get("mxfp4_layers", ()))
    given = {"shape": row["model"], **row, "points": points, "mxfp4_layers": layers}
    return MeasuredRun(**{**given, "source": source})


def _point(row: dict[str, Any]) -> MeasuredPoint:
    given = dict(row)
    value = given.pop("value")
    low, high = value if isinstance(value, list) else (value, value)
    return MeasuredPoint(low=low, high=high, **given)
