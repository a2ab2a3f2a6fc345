"""The lead of one setup over another: the ratio of two figures with its confidence interval."""

from __future__ import annotations

from dataclasses import dataclass

from spark_cluster.bench.record import HIGHER_IS_BETTER, Metric, MetricName
from spark_cluster.bench.report.cells import is_noise
from spark_cluster.bench.report.formats import factor
from spark_cluster.bench.statistics import CONFIDENCE, differences, floor_of


@dataclass(frozen=True)
class Lead:
    """The better of two figures over the other one.

    Attributes:
        ratio: how many times better, of geometric means.
        low, high: ends of its interval; None with fewer than two runs of one of them.
    """

    ratio: float
    low: float | None
    high: float | None
    concurrency: int

    @property
    def is_open(self) -> bool:
        """True where the interval holds 1, or there is none: the other one may be the better."""
        return self.low is None or self.low <= 1

    @property
    def is_clear(self) -> bool:
        """True where one is ahead, by more than two identical servers differ by."""
        return not self.is_open and not is_noise(self.ratio, self.concurrency)

    @property
    def interval(self) -> str:
        """The interval in words."""
        if self.low is None or self.high is None:
            return "too few runs for an interval"
        return f"{100 * CONFIDENCE:.0f} % interval {factor(self.low)} to {factor(self.high)}"

    @property
    def why_open(self) -> str:
        """Return why none is ahead, with the figures."""
        if self.low is None:
            return f"{factor(self.ratio)}, {self.interval}"
        if self.is_open:
            return f"too noisy to tell ({factor(self.ratio)}, {self.interval})"
        return f"identical runs differ as much ({factor(self.ratio)}, {self.interval})"


def lead(metric: MetricName, first: Metric, other: Metric, concurrency: int) -> Lead | None:
    """Return how far the first is ahead; None where a figure is not positive.

    Raises:
        Failed: scipy is not installed.
    """
    more = metric in HIGHER_IS_BETTER
    pair = (other.values or (other.mean,), first.values or (first.mean,))
    (found,) = differences([(*pair, floor_of(concurrency), more)])
    if found.ratio is None:
        return None
    ends = (found.low, found.high)
    if more or found.low is None or found.high is None:
        ratio = found.ratio if more else 1 / found.ratio
        return Lead(ratio, *ends, concurrency)
    return Lead(1 / found.ratio, 1 / found.high, 1 / found.low, concurrency)
