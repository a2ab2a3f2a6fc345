"""Two runs cell by cell: only what was measured alike, and why the rest was not compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from spark_cluster.bench.changes import changed
from spark_cluster.bench.expansion import key_id
from spark_cluster.bench.record import (
    HIGHER_IS_BETTER,
    CellKey,
    CellResult,
    Metric,
    MetricName,
    Record,
    Setup,
)
from spark_cluster.bench.statistics import Difference, Verdict, differences, floor_of
from spark_cluster.config.suggest import did_you_mean
from spark_cluster.errors import UsageError

HEADLINES: tuple[MetricName, ...] = (
    "tg_tps", "pp_tps", "ttfr_ms", "output_tps", "goodput", "ttft_ms", "tpot_ms", "itl_ms",
    "e2el_ms", "request_throughput", "tg_tps_request", "e2e_ttft_ms", "acceptance",
    "acceptance_length", "score", "answer_ms",
)  # fmt: skip
"""Metrics that are compared, the most telling first. Others follow from them (est_ppt), or hang
on single seconds (peak)."""

SETUP_FIELDS = {
    "model": "model",
    "model_revision": "model revision",
    "quantization": "quantization",
    "kv_cache_dtype": "KV cache type",
    "engine": "engine",
    "tp": "tensor-parallel size",
    "replicas": "replicas",
}
"""What must be alike, and its name in a reason."""

_TOOL_FIELDS = {
    "name": "load generator",
    "version": "version of the load generator",
    "latency_mode": "latency mode",
    "prefix_caching": "prefix caching",
}


@dataclass(frozen=True)
class Row:
    """A metric of a cell in both runs.

    Attributes:
        a, b: means.
        variants: what differs from the recipe, in A and in B.
    """

    key: CellKey
    setup: Setup
    metric: MetricName
    a: float
    b: float
    difference: Difference
    variants: tuple[str, str]

    def to_dict(self) -> dict[str, Any]:
        """As in `--json`."""
        return {
            "setup": self.setup.id,
            "key": self.key.model_dump(mode="json"),
            "metric": self.metric,
            "a": self.a,
            "b": self.b,
            "variants": list(self.variants),
            **self.difference.to_dict(),
        }


@dataclass(frozen=True)
class NotComparable:
    """A cell of one run that was left out.

    Attributes:
        side: `A` or `B`.
    """

    side: str
    cell: str
    reason: str

    def to_dict(self) -> dict[str, str]:
        """As in `--json`."""
        return {"side": self.side, "cell": self.cell, "reason": self.reason}


@dataclass(frozen=True)
class Comparison:
    """The result of comparing two runs.

    Attributes:
        changed: what else differs between the runs, such as the image: B's is what is judged.
    """

    a: str
    b: str
    rows: tuple[Row, ...]
    not_comparable: tuple[NotComparable, ...]
    changed: tuple[str, ...] = ()

    def count(self, verdict: Verdict) -> int:
        """Return how many rows have a verdict."""
        return sum(row.difference.verdict == verdict for row in self.rows)

    @property
    def regressed(self) -> bool:
        """True if something is worse in B."""
        return self.count("worse") > 0

    @property
    def summary(self) -> str:
        """The verdict in a line."""
        if not self.rows:
            return "nothing could be compared"
        names: tuple[Verdict, ...] = ("worse", "better", "same", "too noisy", "too few runs")
        parts = [f"{self.count(name)} {name}" for name in names if self.count(name)]
        cells = len({(row.setup.id, row.key) for row in self.rows})
        return f"{', '.join(parts)} (figures of {cells} {'cell' if cells == 1 else 'cells'})"

    def to_dict(self) -> dict[str, Any]:
        """As in `--json`."""
        return {
            "a": self.a,
            "b": self.b,
            "summary": self.summary,
            "regressed": self.regressed,
            "rows": [row.to_dict() for row in self.rows],
            "not_comparable": [one.to_dict() for one in self.not_comparable],
            "changed": list(self.changed),
        }


@dataclass
class _Merged:
    """The cells of one setup and shape: a pair is measured in turns, which are put together."""

    setup: Setup
    key: CellKey
    cells: list[CellResult] = field(default_factory=list)

    @property
    def id(self) -> str:
        return self.cells[0].id

    @property
    def failed(self) -> str:
        return next((cell.reason or cell.status for cell in self.cells if cell.status != "ok"), "")

    def values(self, name: MetricName) -> tuple[float, ...]:
        metrics = [cell.metrics[name] for cell in self.cells if name in cell.metrics]
        return tuple(value for metric in metrics for value in _values(metric))


def _values(metric: Metric) -> tuple[float, ...]:
    """Return a value for each run; the mean stands for one run where they were not kept."""
    return metric.values or (metric.mean,)


def compare(a: Record, b: Record, metrics: Sequence[MetricName] = HEADLINES) -> Comparison:
    """Compare what two runs measured alike: B is judged against A.

    Alike are model and revision, quantization, type of the KV cache, engine, tensor-parallel size,
    replicas, load generator with its version, latency mode, prefix caching, and the load.

    Raises:
        Failed: scipy is not installed.
    """
    ours, theirs = _merged(a), _merged(b)
    tool = _unlike_tools(a, b)
    left_out = [
        NotComparable(side, one.id, tool)
        for side, cells in (("A", ours), ("B", theirs))
        for one in cells
        if tool
    ]
    pairs: list[tuple[_Merged, _Merged]] = []
    if not tool:
        pairs, left_out = _matched(ours, theirs)
    left_out += [*_without_server(a, "A"), *_without_server(b, "B")]
    rows = list(_rows(pairs, metrics))
    return Comparison(a.id, b.id, tuple(rows), tuple(left_out), tuple(changed(a, b)))


def _merged(record: Record) -> list[_Merged]:
    known = {setup.id for setup in record.setups}
    found: dict[tuple[str, CellKey], _Merged] = {}
    for cell in record.cells:
        if cell.setup not in known:
            continue
        place = (cell.setup, cell.key)
        if place not in found:
            found[place] = _Merged(record.setup(cell.setup), cell.key)
        found[place].cells.append(cell)
    return list(found.values())


def _without_server(record: Record, side: str) -> Iterator[NotComparable]:
    """Yield the cells whose server was never brought up."""
    known = {setup.id for setup in record.setups}
    for cell in record.cells:
        if cell.setup not in known:
            yield NotComparable(side, cell.id, f"{cell.status} in {side}: {cell.reason}")


def _unlike_tools(a: Record, b: Record) -> str:
    """Return why two runs' load generators do not measure the same; empty where they do."""
    for name, text in _TOOL_FIELDS.items():
        ours, theirs = getattr(a.tool, name), getattr(b.tool, name)
        if ours != theirs:
            return f"{text}: {_shown(ours)} in A, {_shown(theirs)} in B"
    # Who does not say how long answers were or how they were sampled, does not differ in it.
    for name in ("exact_output", "temperature", "questions"):
        given = a.tool.settings.get(name), b.tool.settings.get(name)
        if name in a.tool.settings and name in b.tool.settings and given[0] != given[1]:
            return f"{name}: {_shown(given[0])} in A, {_shown(given[1])} in B"
    return ""


def _shown(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value) if value not in ("", None) else "not known"


def _unlike(a: Setup, b: Setup) -> list[str]:
    """Return why two servers cannot be compared."""
    return [
        f"{text}: {_shown(getattr(a, name))} in A, {_shown(getattr(b, name))} in B"
        for name, text in SETUP_FIELDS.items()
        if getattr(a, name) != getattr(b, name)
    ]


def _matched(
    ours: list[_Merged], theirs: list[_Merged]
) -> tuple[list[tuple[_Merged, _Merged]], list[NotComparable]]:
    partners = _partners(ours, theirs)
    taken: set[int] = set()
    pairs: list[tuple[_Merged, _Merged]] = []
    left_out: list[NotComparable] = []
    for one in ours:
        other = next(
            (
                found
                for found in theirs
                if partners.get(one.setup.id) == found.setup.id and found.key == one.key
            ),
            None,
        )
        if other is None:
            left_out.append(NotComparable("A", one.id, _why(one, theirs, partners, "A")))
            continue
        taken.add(id(other))
        failed = [("A", one.failed)] if one.failed else []
        failed += [("B", other.failed)] if other.failed else []
        if failed:
            reason = "; ".join(f"failed in {side}: {why}" for side, why in failed)
            left_out.append(NotComparable("A", one.id, reason))
        else:
            pairs.append((one, other))
    backwards = {theirs_id: ours_id for ours_id, theirs_id in partners.items()}
    left_out += [
        NotComparable("B", other.id, _why(other, ours, backwards, "B"))
        for other in theirs
        if id(other) not in taken
    ]
    return pairs, left_out


def _partners(ours: list[_Merged], theirs: list[_Merged]) -> dict[str, str]:
    """Return each server of A with the one of B that is compared with it.

    The same variant comes first. Where each run has one server of its kind only, they are compared
    whatever their variants are: that is then what the user asks about.
    """
    left = {one.setup.id: one.setup for one in ours}
    right = {one.setup.id: one.setup for one in theirs}
    found: dict[str, str] = {}
    for setup in left.values():
        alike = [other for other in right.values() if not _unlike(setup, other)]
        same = [other for other in alike if other.variant == setup.variant]
        kin = [other for other in left.values() if not _unlike(setup, other)]
        same_recipe = [other for other in same if other.recipe == setup.recipe]
        chosen = same_recipe or same or (alike if len(alike) == len(kin) == 1 else [])
        if chosen and chosen[0].id not in found.values():
            found[setup.id] = chosen[0].id
    return found


def _why(one: _Merged, others: list[_Merged], partners: dict[str, str], side: str) -> str:
    """Return why a cell has no counterpart."""
    other_side = "B" if side == "A" else "A"
    if one.setup.id in partners:
        return f"{other_side} has no cell {key_id(one.key)} on such a server"
    setups = list({other.setup.id: other.setup for other in others}.values())
    if not setups:
        return f"{other_side} has no cells"

    def reasons(other: Setup) -> list[str]:
        first, second = (one.setup, other) if side == "A" else (other, one.setup)
        return _unlike(first, second)

    nearest = min((reasons(other) for other in setups), key=len)
    if nearest:
        return "; ".join(nearest)
    variant = one.setup.variant or "the recipe as it is"
    return f"{other_side} has several servers of this kind, none of them with {variant}"


def _rows(pairs: Sequence[tuple[_Merged, _Merged]], metrics: Sequence[MetricName]) -> Iterator[Row]:
    found = [
        (one, other, name, one.values(name), other.values(name))
        for one, other in pairs
        for name in metrics
        if one.values(name)
        and other.values(name)
        # With one request at a time a request's speed is that of all together.
        and not (name == "tg_tps_request" and one.key.concurrency == 1)
        and not (name == "e2e_ttft_ms" and one.values("ttfr_ms"))
    ]
    results = differences(
        [
            (a, b, floor_of(one.key.concurrency), name in HIGHER_IS_BETTER)
            for one, _, name, a, b in found
        ]
    )
    for (one, other, name, a, b), difference in zip(found, results, strict=True):
        variants = (one.setup.variant, other.setup.variant)
        means = sum(a) / len(a), sum(b) / len(b)
        yield Row(one.key, one.setup, name, *means, difference, variants)


def part_of(record: Record, setup: str) -> Record:
    """Return a run with one of its servers only, so that two servers of a run can be compared.

    Raises:
        UsageError: the run has no such server.
    """
    known = [one.id for one in record.setups]
    if setup not in known:
        raise UsageError(
            f"run {record.id} has no setup '{setup}'", hint=did_you_mean(setup, known, "setups")
        )
    return record.model_copy(
        update={
            "id": f"{record.id}#{setup}",
            "setups": tuple(one for one in record.setups if one.id == setup),
            "cells": tuple(cell for cell in record.cells if cell.setup == setup),
        }
    )
