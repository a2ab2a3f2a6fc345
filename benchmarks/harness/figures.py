"""The figures of the benchmark, and whether they are those that are wanted."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from typing import Any

DEVIATION = 0.01
"""Share by which throughput under `bench run` may differ from that by hand."""

AROUND_S = 5.0
"""Seconds around each cell."""

SAMPLER = 0.01
"""Share of a core that the sampler may take."""


@dataclass(frozen=True)
class Verdict:
    """A figure next to what is wanted.

    Attributes:
        value, wanted: the figure must be under `wanted`; not a number where it is not known.
        unclear: it scatters too much to say that it is not met.
    """

    name: str
    value: float
    wanted: float
    shown: str
    unclear: bool = False

    @property
    def met(self) -> bool:
        """True if it is what is wanted."""
        return self.value < self.wanted

    @property
    def text(self) -> str:
        """What is said of it."""
        if self.met:
            return "met"
        return "not shown: it scatters too much" if self.unclear else "not met"

    def to_dict(self) -> dict[str, object]:
        """As in the JSON file."""
        value = self.value if math.isfinite(self.value) else None
        return {"name": self.name, "value": value, "wanted": self.wanted, "met": self.met}


SMALLEST_SAMPLE = 5
"""Repetitions of a cell below which no interval is given."""

Figures = Mapping[str, list[float]]
"""Of each repetition, by cell."""


@dataclass(frozen=True)
class Deviation:
    """By which share throughput under `bench run` is more than that by hand.

    Attributes:
        low, high: its interval; not a number where repetitions are too few.
    """

    share: float
    low: float = math.nan
    high: float = math.nan

    @property
    def verdict(self) -> Verdict:
        """It is met where the interval is within what is wanted, not only the share."""
        farthest = max(abs(self.low), abs(self.high))
        clear = self.low > DEVIATION or self.high < -DEVIATION
        shown = f"{self.share:+.2%} ({self.low:+.2%} to {self.high:+.2%})"
        name = "throughput differs from by hand"
        return Verdict(name, farthest, DEVIATION, shown, unclear=not clear)


def throughputs(record: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return tokens a second of each repetition, by cell, of a run's record."""
    return {
        cell["id"]: list(cell["metrics"]["tg_tps"]["values"])
        for cell in record["cells"]
        if cell["status"] == "ok"
    }


def by_hand(results: Mapping[str, Mapping[str, Any]]) -> dict[str, list[float]]:
    """Return the same of llama-benchy's own results."""
    return {
        id: list(result["benchmarks"][0]["tg_throughput"]["values"])
        for id, result in results.items()
    }


def deviation(ours: Sequence[Figures], theirs: Sequence[Figures]) -> Deviation:
    """Return by which share throughput differs: ratios of medians, their geometric mean over cells.

    The interval is a percentile bootstrap of 95 %, over the repetitions of each cell.

    Args:
        ours, theirs: of each round, by cell.
    """
    import numpy
    from scipy.stats import bootstrap

    samples: list[list[float]] = []
    for id in sorted({id for found in (*ours, *theirs) for id in found}):
        a = [value for found in ours for value in found.get(id, [])]
        b = [value for found in theirs for value in found.get(id, [])]
        samples += [a, b] if a and b else []
    if not samples:
        return Deviation(math.nan)
    share = _share_over(*samples)
    if min(map(len, samples)) < SMALLEST_SAMPLE:
        return Deviation(share)
    drawn = bootstrap(
        samples,
        _share_over,
        vectorized=False,
        method="percentile",
        n_resamples=2000,
        rng=numpy.random.default_rng(0),
    ).confidence_interval
    return Deviation(share, float(drawn.low), float(drawn.high))


def _share_over(*samples: Sequence[float]) -> float:
    """The share for samples that follow each other as ours, theirs, ours, theirs."""
    logs = [
        math.log(statistics.median(a) / statistics.median(b))
        for a, b in zip(samples[::2], samples[1::2], strict=True)
    ]
    return math.exp(statistics.fmean(logs)) - 1


def gaps(record: Mapping[str, Any]) -> list[float]:
    """Return the seconds between the end of each load generator and the begin of the next one."""
    spans = sorted(_spans(record))
    return [later[0] - earlier[1] for earlier, later in pairwise(spans)]


def around(record: Mapping[str, Any], measure_s: float) -> float:
    """Return the seconds a cell in addition to its load generator.

    Args:
        measure_s: of the stage `measure`: telemetry is started, cells are sent, measured, fetched.
    """
    spans = list(_spans(record))
    measured = sum(end - begin for begin, end in spans)
    return (measure_s - measured) / len(spans) if spans else math.nan


def _spans(record: Mapping[str, Any]) -> Iterator[tuple[float, float]]:
    for cell in record["cells"]:
        if cell["started"] and cell["finished"]:
            begin, end = (datetime.fromisoformat(cell[n]) for n in ("started", "finished"))
            yield begin.timestamp(), end.timestamp()


def verdicts(
    differs: Deviation, between: Sequence[float], each: Sequence[float], sampler: Sequence[float]
) -> list[Verdict]:
    """Return all figures, the worst of each kind.

    Args:
        between, each: seconds between cells, and around each of them by rounds.
        sampler: shares of a core, by node and round.
    """
    gap = max(between, default=math.nan)
    whole = max(each, default=math.nan)
    share = max(sampler, default=math.nan)
    return [
        differs.verdict,
        Verdict("longest time between two cells", gap, AROUND_S, f"{gap:.1f} s"),
        Verdict("time around a cell, of the stage", whole, AROUND_S, f"{whole:.1f} s"),
        Verdict("sampler's share of a core", share, SAMPLER, f"{share:.2%}"),
    ]
