"""Logs of a server that failed, kept on the laptop before the server is removed."""

from __future__ import annotations

import os
import time
from pathlib import Path

from spark_cluster.config.caches import state_folder
from spark_cluster.engine import logs
from spark_cluster.engine.names import PROGRAMS
from spark_cluster.errors import SparkClusterError
from spark_cluster.runner.play import Play

LINES = 5000
"""Lines of each log that are kept."""

KEPT = 20
"""Files of failed servers that are kept."""


def keep(play: Play) -> Path | None:
    """Write the end of all logs into one file that only the user reads; None without any.

    It is a help for a failure that has its own message: what goes wrong here is only noted.
    """
    try:
        found = [
            f"==> {node.name} {program}\n{text}\n"
            for node in play.nodes
            for program in PROGRAMS
            if (text := logs.read(play.session(node), program, lines=LINES))
        ]
        return _write("".join(found)) if found else None
    except (SparkClusterError, OSError) as error:
        play.note(f"the log of the failed server could not be kept: {error}", warning=True)
        return None


def _write(text: str) -> Path:
    folder = state_folder() / "failed"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    path = folder / time.strftime("%Y%m%dT%H%M%SZ.log", time.gmtime())
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(handle, "w", errors="replace") as out:
        out.write(text)
    for old in sorted(folder.glob("*.log"))[:-KEPT]:
        old.unlink(missing_ok=True)
    return path
