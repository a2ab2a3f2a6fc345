"""Reads a run's folder. It may be somebody else's: nothing in it is believed unchecked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from spark_cluster.bench.record import Record
from spark_cluster.bench.report.telemetry import Telemetry, read_telemetry
from spark_cluster.bench.run_folder import TELEMETRY, load_record


@dataclass(frozen=True)
class Run:
    """A run as it was read.

    Attributes:
        telemetry: None when the run has none.
    """

    folder: Path
    record: Record
    telemetry: Telemetry | None


def read_run(folder: Path) -> Run:
    """Read the record and the telemetry of a run.

    Raises:
        UsageError: there is no record.
        InvalidFile: a file is not what it should be.
    """
    record = load_record(folder)
    telemetry = folder / TELEMETRY
    return Run(folder, record, read_telemetry(telemetry) if telemetry.is_file() else None)
