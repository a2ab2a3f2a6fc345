"""A benchmark's user in the lab, and what a run leaves on the laptop."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from commandline import CommandLine

from spark_cluster.bench.on_node import FOLDER
from spark_cluster_lab import Lab

LEFT = ["sh", "-c", "systemctl stop 'spark-cluster-telemetry-*'; rm -rf \"$0\"", FOLDER]


def record(folder: Path) -> dict[str, Any]:
    """The record in the folder of a run."""
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return found


@contextmanager
def bench_user(
    lab: Lab, home: Path, suites: Mapping[str, str], nodes: Sequence[str] = ("spark1",)
) -> Iterator[CommandLine]:
    """A user with suites of their own; nothing of earlier runs is on the nodes, and no server
    stays.

    Args:
        suites: name to text.
        nodes: whose folders of earlier runs are removed.
    """
    made = CommandLine(home)
    for name in nodes:
        lab.node(name).run(LEFT)
    (made.home / "suites").mkdir()
    for name, text in suites.items():
        (made.home / f"suites/{name}.yaml").write_text(text)
    yield made
    made("down")
