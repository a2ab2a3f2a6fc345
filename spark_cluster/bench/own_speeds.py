"""The user's own decode speeds: what runs in the project's folder say of a launch."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from spark_cluster.bench.record import CellResult, Record, Setup
from spark_cluster.bench.run_folder import RECORD, load_record
from spark_cluster.config.launch import Launch
from spark_cluster.errors import SparkClusterError
from spark_cluster.loader.project import Project
from spark_cluster.planning.evidence import SHORT, Evidence, of_own

MOST_RUNS = 50
"""The newest runs that are looked at."""

DEPTH = 3
"""Folders below the project's in which runs are looked for."""


def own_evidence(project: Project, launch: Launch, users: int, context: float) -> Evidence | None:
    """Return what the project's own runs measured of a launch; None when none did.

    A record that cannot be read says nothing.
    """
    figures = [
        (figure, path.parent.name)
        for path, record in _records(project.folder)
        for setup in record.setups
        if _is_alike(setup, launch)
        for figure in _figures(record, setup, users, context)
    ]
    return of_own(figures)


def _records(folder: Path) -> Iterator[tuple[Path, Record]]:
    found = {path for depth in range(1, DEPTH + 1) for path in folder.glob("*/" * depth + RECORD)}
    newest = sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[:MOST_RUNS]
    for path in newest:
        try:
            yield path, load_record(path)
        except SparkClusterError:
            continue


def _is_alike(setup: Setup, launch: Launch) -> bool:
    """Return whether a server of a run was what the launch is."""
    return (
        setup.model.casefold() == launch.model.casefold()
        and setup.tp == launch.tp
        and setup.replicas == 1
        and setup.engine == launch.engine
        and (not launch.quantization or setup.quantization in ("", launch.quantization))
        and _drafts(setup) == bool(launch.drafted_tokens)
    )


def _drafts(setup: Setup) -> bool:
    return any(re.match(r"--speculative[-_]config", flag) for flag in setup.flags)


def _figures(record: Record, setup: Setup, users: int, context: float) -> Iterator[float]:
    for cell in record.cells:
        key = cell.key
        middle = key.depth + key.prompt + key.output / 2
        near = context / 8 <= middle <= max(SHORT, 4 * context)
        plain = key.kind == "load" and key.request_rate is None and not key.context_prefill
        if cell.setup == setup.id and cell.status == "ok" and plain and near:
            figure = _each(cell)
            if key.concurrency == users and figure:
                yield figure


def _each(cell: CellResult) -> float | None:
    """Return tokens/s of one request."""
    found = cell.metrics.get("tg_tps_request")
    if found is None and cell.key.concurrency == 1:
        found = cell.metrics.get("tg_tps")
    return found.mean if found else None
