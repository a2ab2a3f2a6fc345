"""The page of faults: how each is found, what is said, and how long that took in the lab.

`docs/faults.toml` is what the tests hold; `docs/faults-measured.json` is what they measured.
"""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from docs.generate.markdown import code, page, paragraphs, plain, table

DOCS = Path(__file__).parents[1]
TABLE, MEASURED = DOCS / "faults.toml", DOCS / "faults-measured.json"

INTRODUCTION = """\
Each fault has a test that causes it, reads the message, and measures the time until then: in the
lab on booted nodes with real vLLM, Ray and Docker, or ("simulated") against a server that answers
as a faulty one does. The words are those that the test looks for. A time is that of the command
that finds the fault, or from the fault until that command could report it. The supervision checks
every 2 seconds in the lab, and every 15 on your nodes by default. The lab's two nodes share the
cores of one machine with vLLM."""

HEADER = ("fault", "found by", "message", "time", "test")


def faults() -> list[dict[str, Any]]:
    """The rows, in the order of the file."""
    rows: list[dict[str, Any]] = tomllib.loads(TABLE.read_text())["fault"]
    return rows


def measured() -> dict[str, dict[str, Any]]:
    """Fault to its time, day and machine."""
    found: dict[str, dict[str, Any]] = json.loads(MEASURED.read_text())
    return found


def render() -> str:
    """The page."""
    times, rows = measured(), faults()
    whole = [
        paragraphs(
            f"## {title}",
            table(HEADER, [_cells(row, times) for row in rows if row["when"] == title.lower()]),
        )
        for title in ("Before it serves", "While it loads", "While it serves")
    ]
    days = sorted({f"{one['on']} ({one['machine']})" for one in times.values()})
    return page("Faults", INTRODUCTION, *whole, f"Measured on {'; '.join(days)}.")


def _cells(row: dict[str, Any], times: dict[str, dict[str, Any]]) -> tuple[str, ...]:
    in_lab = row["test"].startswith("tests/lab/")
    seconds = "not measured" if in_lab else "simulated"
    if row["id"] in times:
        seconds = f"{times[row['id']]['seconds']:.1f} s"
        if row.get("until"):
            seconds += f" until {row['until']}"
    said = plain(row["shows"]) if "shows" in row else "; ".join(map(plain, row["says"]))
    return plain(row["fault"]), plain(row["found_by"]), said, seconds, code(row["test"])
