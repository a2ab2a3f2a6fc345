"""`python -m benchmarks.report`: how long the report of a long run takes, and how large it is."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
HOURS = 8
DEPTHS = tuple(range(0, 102_400, 2_048))
LOADS = tuple(range(1, 11))
WANTED_S = 10.0
WANTED_MB = 5.0

REPORT = """\
import sys
from pathlib import Path
from spark_cluster.bench.report import write_report
write_report(Path(sys.argv[1]), Path(sys.argv[2]))
"""


@dataclass(frozen=True)
class Cost:
    """What one report took: seconds."""

    wall: float
    cpu: float


def make_run(folder: Path) -> int:
    """Write the run of 8 hours; return how many cells it has."""
    sys.path.insert(0, str(ROOT / "tests"))
    from bench_records import START, dual_record, write_run

    record = dual_record(DEPTHS, LOADS)
    assert record.finished is not None
    scale = timedelta(hours=HOURS) / (record.finished - START)

    def scaled(moment: datetime | None) -> datetime | None:
        return START + (moment - START) * scale if moment else None

    cells = tuple(
        cell.model_copy(update={n: scaled(getattr(cell, n)) for n in ("started", "finished")})
        for cell in record.cells
    )
    update = {"cells": cells, "finished": scaled(record.finished)}
    write_run(folder, record.model_copy(update=update))
    return len(cells)


def report(run: Path, out: Path) -> Cost:
    """Make the report in a process of its own."""
    before, start = os.times(), time.monotonic()
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", REPORT, str(run), str(out)], check=True, env=environment)
    after = os.times()
    cpu = after.children_user + after.children_system
    return Cost(time.monotonic() - start, cpu - before.children_user - before.children_system)


@click.command()
@click.option("--runs", default=3, show_default=True, type=click.IntRange(1))
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write all runs here.")
def main(runs: int, json_file: Path | None) -> None:
    """Measure the report of a run of about 1,000 cells and 8 hours of telemetry."""
    with tempfile.TemporaryDirectory(prefix="scbench-") as folder:
        run, out = Path(folder) / "run", Path(folder) / "report"
        cells = make_run(run)
        costs = [report(run, out) for _ in range(runs)]
        page = (out / "report.html").stat().st_size / 1e6
        whole = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / 1e6
    least = min(cost.wall for cost in costs)
    middle = statistics.median(cost.wall for cost in costs)
    cpu = statistics.median(cost.cpu for cost in costs)
    met = least < WANTED_S and whole < WANTED_MB
    click.echo(f"{cells:,} cells, {HOURS} h of telemetry of 2 nodes")
    click.echo(f"least {least:.1f} s, median {middle:.1f} s, CPU {cpu:.1f} s")
    click.echo(f"page {page:.2f} MB, all files {whole:.2f} MB")
    click.echo(f"under {WANTED_S:g} s and {WANTED_MB:g} MB: {'met' if met else 'not met'}")
    if json_file:
        figures = {
            "cells": cells,
            "page_mb": page,
            "files_mb": whole,
            "runs": list(map(asdict, costs)),
        }
        json_file.write_text(json.dumps(figures, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
