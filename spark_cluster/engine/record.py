"""The run record on the laptop: every event of a run as JSON lines, kept beside the last ones."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from spark_cluster.engine.events import Event
from spark_cluster.errors import Failed

KEPT = 200
"""Runs whose records are kept."""


def state_folder() -> Path:
    """`$XDG_STATE_HOME/spark-cluster`, by default under ~/.local/state."""
    base = os.environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(base).expanduser() / "spark-cluster"


def new_run() -> str:
    """An id that sorts by time, within a second too: `20261120-141502-3fa9`."""
    now = time.time()
    return time.strftime("%Y%m%d-%H%M%S-", time.gmtime(now)) + f"{int(now % 1 * 0x10000):04x}"


class Record:
    """Writes `runs/RUN.jsonl`, readable by its user only.

    Raises:
        Failed: the file cannot be made.
    """

    def __init__(self, run: str, folder: Path | None = None) -> None:
        self.folder = (folder or state_folder()) / "runs"
        self.path = self.folder / f"{run}.jsonl"
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        except OSError as error:
            raise Failed(
                f"the run record cannot be written: {error.strerror}",
                where=str(self.path),
                hint="XDG_STATE_HOME names another folder for it",
            ) from None
        self._out = os.fdopen(handle, "w", buffering=1)
        for old in sorted(self.folder.glob("*.jsonl"))[:-KEPT]:
            old.unlink(missing_ok=True)

    def take(self, event: Event) -> None:
        self._out.write(json.dumps(event.document(), default=str) + "\n")

    def close(self) -> None:
        self._out.close()
