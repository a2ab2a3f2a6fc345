"""What was measured of a configuration, by the user or by others: shown with each prediction."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from spark_cluster.planning.measurements import MeasuredPoint, MeasuredRun, Source, measured_runs
from spark_cluster.planning.speed.estimate import Estimate
from spark_cluster.planning.speed.serving import Serving

SPREAD = 0.10
"""Two owners with the same settings differ by about this much, as a share."""

SHORT = 4096
"""Contexts up to this many tokens, or up to four times what is asked, count as alike: they change
the speeds of what was measured by a few percent."""


@dataclass(frozen=True)
class Comparison:
    """Evidence next to a prediction, as `--json` prints it.

    Attributes:
        own: by the user's own runs.
        low, high: tokens/s of one request.
        contradicts_prediction: nothing that was measured lies in the predicted range.
    """

    own: bool
    low: float
    high: float
    contradicts_prediction: bool
    sources: tuple[Source, ...]


@dataclass(frozen=True)
class Evidence:
    """Tokens/s of one request as measured.

    Attributes:
        own: by the user's own runs.
        sources: where it was published; for own runs their folders.
    """

    low: float
    high: float
    sources: tuple[Source, ...]
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

    def to_dict(self, predicted: Estimate) -> dict[str, Any]:
        """Return it as `--json` prints it."""
        return {
            "own": self.own,
            "low": round(self.low, 2),
            "high": round(self.high, 2),
            "contradicts_prediction": self.contradicts(predicted),
            "sources": [{"key": s.key, "title": s.title, "link": s.link} for s in self.sources],
        }


@dataclass(frozen=True)
class Case:
    """What is asked for: a model as it is served, and how it is used.

    Attributes:
        names: of the model and what it is built from, on the hub.
        drafted: tokens drafted in a step, 0 without a drafter.
    """

    names: tuple[str, ...]
    serving: Serving
    users: int
    context: float
    drafted: int = 0


def by_others(case: Case) -> Evidence | None:
    """Return what others measured of the same model, quantization, nodes, users and drafting."""
    found = [(p, r.source) for r in measured_runs() if _is_alike(r, case) for p in _points(r, case)]
    if not found:
        return None
    lows, highs = zip(*(point.each for point, _ in found), strict=True)
    sources = tuple({source.key: source for _, source in found}.values())
    return Evidence(min(lows), max(highs), sources)


def own_first(own: Evidence | None, case: Case) -> Evidence | None:
    """Return the user's own evidence, or that of others where there is none."""
    return own or by_others(case)


def said(evidence: Evidence, predicted: Estimate) -> str:
    """Return the line that is shown, with a warning where the two contradict each other."""
    if not evidence.contradicts(predicted):
        return evidence.text
    return f"{evidence.text}, which contradicts the prediction: trust the measurement"


def _is_alike(run: MeasuredRun, case: Case) -> bool:
    serving = case.serving
    names = {name.casefold() for name in case.names if name}
    known = run.model.casefold() in names
    of_base = run.shape.casefold() in names
    formats = {run.quantization.replace("-online", ""), serving.quantization.replace("-online", "")}
    return (
        (known or of_base)
        and not run.excluded
        and len(formats) == 1
        and run.tp == serving.tp
        and serving.data_parallel == 1
        and run.engine == serving.engine
        and bool(run.drafted) == bool(case.drafted)
        and set(run.mxfp4_layers) == set(serving.mxfp4_layers)
        and (run.transport == "socket") == serving.sockets
    )


def _points(run: MeasuredRun, case: Case) -> Iterable[MeasuredPoint]:
    most = max(SHORT, 4 * case.context)
    for point in run.points:
        decodes = point.metric != "ttfr_ms"
        if decodes and point.users == case.users and case.context / 8 <= point.context <= most:
            yield point


def of_own(figures: Sequence[tuple[float, str]]) -> Evidence | None:
    """Return the evidence of own runs.

    Args:
        figures: tokens/s of one request, and the run that it is of.
    """
    if not figures:
        return None
    speeds = [figure for figure, _ in figures]
    runs = {name: Source(name, name, "") for _, name in figures}
    return Evidence(min(speeds), max(speeds), tuple(runs.values()), own=True)
