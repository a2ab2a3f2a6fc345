"""What a load generator is to a run: the command of a cell, and the meaning of what it leaves.

To add one: a module with a `Generator`, a line in `generators.py`, its name in `suite.py`,
and where it is not part of the engine a role that installs it on the head.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, stdev
from typing import Any, ClassVar

from spark_cluster.bench.expansion import PlannedCell
from spark_cluster.bench.record import CellKey, CellResult, Metric, MetricName, Tool
from spark_cluster.bench.suite import Suite
from spark_cluster.engine.deployment import Deployment

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
class Run:
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

    runs: tuple[Run, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    as_root: bool = False
    questions: Mapping[str, Any] = field(default_factory=dict)


class Generator(ABC):
    """A load generator.

    Attributes:
        role: that installs it on the head, and whose settings have `version` and `path`; empty
            where there is nothing to install.
        version: that is read; empty where it is not ours to choose.
        engine: of which it is a part; empty for one that measures any.
    """

    role: ClassVar[str] = ""
    version: ClassVar[str] = ""
    engine: ClassVar[str] = ""

    @abstractmethod
    def tool(self, suite: Suite) -> Tool:
        """Return what the record says of it; without a version where it is the engine's."""

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
