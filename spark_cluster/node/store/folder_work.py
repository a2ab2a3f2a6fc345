"""Hashing the files of a plain folder in a process of its own, which a transient unit runs."""

from __future__ import annotations

from pathlib import Path

from spark_cluster.node import own_program
from spark_cluster.node.store.plain_folder import PlainFolder
from spark_cluster.node.store.progress import Progress

EXACT = "exact"


def argv(folder: str, ours: str, *, exact: bool = False) -> list[str]:
    """Return the command that does it with this very code."""
    return own_program.argv(__name__, folder, ours, EXACT if exact else "")


def main(folder: str, ours: str, how: str) -> None:
    """Do it; the last line of output is JSON: `manifest`, or `error` and `hint`."""
    plain = PlainFolder(Path(folder), Path(ours), exact=how == EXACT)
    own_program.print_answer(
        lambda: {"manifest": plain.manifest(Progress(0).add).document()},
    )
