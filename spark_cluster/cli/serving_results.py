"""The results of what serves: `up`, `down`, `ray up`, `ray down`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spark_cluster.cli.results import RunSummary
from spark_cluster.config.schema import Document, Flat, Hidden
from spark_cluster.engine.memory_phases import MemoryOfNode
from spark_cluster.engine.ray_cluster import RayStatus
from spark_cluster.engine.result import Served, ServedModels
from spark_cluster.engine.vram import Stopped


@dataclass(frozen=True)
class UpResult(Document):
    """The result of `up`.

    Attributes:
        run: how the run went.
        served: the verified endpoint; None where nothing was verified (check mode, a selection of
            roles).
        memory: the GPU memory of each node by phase, next to what the plan predicted.
        memory_plot: file of this machine with its course; None where nothing was started, without
            the extra `bench`, or of several models.
    """

    run: Flat[RunSummary]
    served: Flat[Served | None]
    memory: tuple[MemoryOfNode, ...]
    memory_plot: Path | None = None


@dataclass(frozen=True)
class UpModelsResult(UpResult):
    """The result of `up` of several models."""

    served: Flat[ServedModels | None]
    memory_plot: Hidden[Path | None] = None


@dataclass(frozen=True)
class DownResult(Document):
    """The result of `down`.

    Attributes:
        run: how the run went.
        stopped: the memory held before and after; None in check mode.
    """

    run: Flat[RunSummary]
    stopped: Flat[Stopped | None]


@dataclass(frozen=True)
class RayUpResult(Document):
    """The result of `ray up`.

    Attributes:
        run: how the run went.
        cluster: the Ray cluster; None in check mode and with a selection of roles.
    """

    run: Flat[RunSummary]
    cluster: RayStatus | None
