"""The benchmark runs of a project, and the files of their reports."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_cluster.bench.run_folder import PAGE, RECORD, REPORT, load_record
from spark_cluster.errors import SparkClusterError

MOST = 200
"""Runs that are listed, the newest first."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True)
class BenchRuns:
    """The runs below a folder.

    Args:
        folder: has a folder for each run (`bench-results` of the project).
    """

    folder: Path

    def list(self) -> list[dict[str, Any]]:
        """Return the runs, the newest first; one that cannot be read says why."""
        paths = sorted(self.folder.glob(f"*/{RECORD}"), key=_changed, reverse=True)
        return [
            self._one(path.parent) for path in paths[:MOST] if _NAME.fullmatch(path.parent.name)
        ]

    def _one(self, run: Path) -> dict[str, Any]:
        page = self.page(run.name)
        about: dict[str, Any] = {"name": run.name, "report": page is not None}
        try:
            record = load_record(run)
        except SparkClusterError as error:
            return about | {"error": error.message}
        return about | {
            "suite": record.suite,
            "status": record.status,
            "started": record.started.isoformat(),
            "cells": len(record.cells),
            "failed": sum(cell.status == "failed" for cell in record.cells),
            "servers": [setup.id for setup in record.setups],
        }

    def page(self, name: str) -> Path | None:
        """Return the page of a run's report; None where there is none, or the name is no name.

        A report is one file that loads nothing, so that no other file is ever served.
        """
        if not _NAME.fullmatch(name):
            return None
        path = self.folder / name / REPORT / PAGE
        inside = path.resolve().is_relative_to(self.folder.resolve())
        return path if inside and path.is_file() else None


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
