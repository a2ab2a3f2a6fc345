"""The time until a fault is found, and the words in which it is said.

The words and the limits are those of docs/faults.toml, which the page of faults is made of. With
`FAULTS_MEASURED=docs/faults-measured.json` in the environment the times are written there.
"""

import datetime
import json
import os
import platform
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

TABLE = Path(__file__).parents[2] / "docs/faults.toml"
MEASURED = "FAULTS_MEASURED"


class Detection:
    """A fault that has begun; it is found when a command or a log says its words."""

    def __init__(self, row: dict[str, Any]) -> None:
        self.row = row
        self.began = time.monotonic()
        self.seconds: float | None = None

    def said_in(self, text: str) -> None:
        """Take the time; all of the fault's words must be in a text."""
        self.seconds = time.monotonic() - self.began
        missing = [words for words in self.row["says"] if words not in text]
        assert not missing, f"{missing} not in:\n{text}"


@contextmanager
def detection(fault: str, record: Callable[[str, object], None]) -> Iterator[Detection]:
    """Begin a fault of the table; at the end it must have been found in time."""
    (row,) = (r for r in tomllib.loads(TABLE.read_text())["fault"] if r["id"] == fault)
    found = Detection(row)
    yield found
    assert found.seconds is not None, f"{fault}: nothing was said"
    assert found.seconds < row["within_s"], f"{fault}: only after {found.seconds:.0f} s"
    record(f"seconds until {fault} was found", round(found.seconds, 1))
    if path := os.environ.get(MEASURED):
        _write(Path(path), fault, found.seconds)


def _write(path: Path, fault: str, seconds: float) -> None:
    known: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    known[fault] = {
        "seconds": round(seconds, 1),
        "on": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "machine": f"lab, {os.cpu_count()} cores, {platform.machine()}",
    }
    path.write_text(json.dumps(dict(sorted(known.items())), indent=2) + "\n")
