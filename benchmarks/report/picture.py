"""`python -m benchmarks.report.picture`: the picture of a report that the README shows.

Its figures are those of the tests' made-up run. It needs a Chromium.
"""

from __future__ import annotations

import base64
import sys
import tempfile
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parents[2]
PICTURE = ROOT / "docs" / "pictures" / "bench-report.png"
WIDTH, HEIGHT = 1200, 1570
"""Pixels: down to the end of the tables of TP=1 and TP=2."""

DEPTHS = (0, 8192, 16384, 32768)


@click.command()
def main() -> None:
    """Write the picture; it needs the extra `dev` and a Chromium."""
    sys.path.insert(0, str(ROOT / "tests"))
    from bench_records import dual_record, write_run
    from browser import browser, installed

    from spark_cluster.bench.record import PAGE
    from spark_cluster.bench.report import write_report

    program = installed()
    if program is None:
        raise click.ClickException("no Chromium on this machine, and it makes the picture")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        record = dual_record(DEPTHS).model_copy(update={"id": "sample-data"})
        write_report(write_run(folder / "run", record), folder / "report")
        page = folder / "report" / PAGE
        with browser(program, folder / "profile") as shown:
            shown.open(page, width=WIDTH)
            clip = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT, "scale": 1}
            found = shown.call(
                "Page.captureScreenshot", format="png", clip=clip, captureBeyondViewport=True
            )
    PICTURE.parent.mkdir(exist_ok=True)
    PICTURE.write_bytes(base64.b64decode(found["data"]))
    click.echo(f"{PICTURE.relative_to(ROOT)}: {PICTURE.stat().st_size / 1024:.0f} KiB")


if __name__ == "__main__":
    main()
