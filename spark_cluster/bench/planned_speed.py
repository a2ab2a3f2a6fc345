"""Planned speeds of a suite's servers, for the estimate of how long it takes and for the record."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING

from spark_cluster.bench.duration import Speed, Speeds
from spark_cluster.bench.expansion import PlannedSetup
from spark_cluster.bench.record import CellKey, MetricName, Prediction
from spark_cluster.errors import SparkClusterError
from spark_cluster.loader.project import Project
from spark_cluster.planning.speed import of_recipe
from spark_cluster.planning.speed.constants import load_constants
from spark_cluster.planning.speed.estimate import SMALLEST, Estimate
from spark_cluster.planning.speed.prefill import prefill

if TYPE_CHECKING:
    from spark_cluster.planning.speed.serving import Serving


def planned_speeds(project: Project) -> Speeds:
    """Return what gives a server's planned speed; None for what is not known of.

    Raises:
        InvalidFile: the project's own calibration is wrong.
    """
    constants = load_constants(project)
    known: dict[str, Serving | None] = {}

    def serving(setup: PlannedSetup) -> Serving | None:
        if setup.id not in known:
            known[setup.id] = _serving(setup, project)
        return known[setup.id]

    @cache
    def speed(setup_id: str, context: int) -> Speed | None:
        setup, found = setups[setup_id], known[setup_id]
        if found is None or setup.served is None:
            return None
        try:
            first = prefill(found, max(context, 1), constants=constants)
            each = of_recipe.expected(setup.served, found, context=context, constants=constants)
        except SparkClusterError:  # the plan has no figure for it
            return None
        return Speed(max(context, 1) / first.seconds.expected, each.expected)

    setups: dict[str, PlannedSetup] = {}

    def ask(setup: PlannedSetup, context: int) -> Speed | None:
        setups[setup.id] = setup
        serving(setup)
        return speed(setup.id, context)

    return ask


def predictions(
    project: Project, setup: PlannedSetup, keys: Iterable[CellKey], *, prefix_caching: bool = False
) -> tuple[Prediction, ...]:
    """Return what the plan predicts for cells with one request at a time, for the record.

    Decoding is predicted in the middle of the answer, prefill for all tokens that are not cached.

    Raises:
        InvalidFile: the project's own calibration is wrong.
    """
    found = _serving(setup, project)
    if found is None or setup.served is None:
        return ()
    constants = load_constants(project)
    made: list[Prediction] = []
    for key in keys:
        if key.kind != "load" or key.concurrency != 1 or key.request_rate is not None:
            continue
        cached = key.depth if prefix_caching else 0
        context = key.depth + key.prompt + key.output / 2
        try:
            first = prefill(found, key.prompt + key.depth - cached, cached, constants=constants)
            each = of_recipe.expected(setup.served, found, context=context, constants=constants)
        except SparkClusterError:  # the plan has no figure for it
            continue
        made += [
            _prediction(key, "tg_tps", each),
            _prediction(key, "pp_tps", first.tokens_s),
            _prediction(key, "ttfr_ms", first.seconds, 1000.0),
        ]
    return tuple(made)


def _prediction(
    key: CellKey, metric: MetricName, found: Estimate, scale: float = 1.0
) -> Prediction:
    low, value, high = (n * scale for n in (found.low, found.expected, found.high))
    return Prediction(metric=metric, key=key, low=low, value=value, high=high)


def _serving(setup: PlannedSetup, project: Project) -> Serving | None:
    """Return what a server serves; None where its speed cannot be predicted."""
    if setup.served is None:
        return None
    try:
        found = of_recipe.serving_of(setup.served, setup.tp, project.folder)
        is_toy = found.weights.step_bytes() < SMALLEST
    except SparkClusterError:  # the model's shape is not known, say
        return None
    return None if is_toy else found
