"""Logs of the engine's start, kept with a run: bounded, and without secrets."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path

from spark_cluster.bench.printable import printable
from spark_cluster.engine import logs
from spark_cluster.engine.names import RAY, SERVER
from spark_cluster.errors import SparkClusterError
from spark_cluster.node.durable import make_folder, write_file
from spark_cluster.node.masking import mask
from spark_cluster.runner.play import Play
from spark_cluster.topology import Node

FOLDER = "logs"
"""Below the folder of a run."""

BYTES = 1 << 20
"""Of each program, from its beginning: a start prints less than a third of it."""

_NOTHING = re.compile(r"Error[^\n]*No such container[^\n]*\n?|[^\n]*docker: [^\n]*not found\n?")
"""What is printed instead of a log where there is no such program."""


def keep(play: Play, run: Path, name: str) -> tuple[str, ...]:
    """Copy the beginning of the logs of all nodes; what a node does not give is left out.

    Args:
        run: folder of the run.
        name: of the step, with which the files' names begin.

    Returns:
        The paths of the files, below the folder of the run.
    """
    kept = []
    for node in play.nodes:
        for program in (SERVER, RAY):
            path = f"{FOLDER}/{name}-{node.name}-{program}.log"
            text = _read(play, node, program)
            if text:
                make_folder(run / FOLDER, 0o755)
                write_file(run / path, text.encode("utf-8", "replace"), 0o644)
                kept.append(path)
    return tuple(kept)


def _read(play: Play, node: Node, program: str) -> str:
    """Return the beginning of a log; empty where there is none."""
    text = ""
    with contextlib.suppress(SparkClusterError):  # no reason not to measure
        text = logs.read_beginning(play.session(node), program, BYTES)
    if _NOTHING.fullmatch(text):
        return ""
    return printable(str(mask(text, play.secrets)))
