"""A playbook: what to do, in order, as a plain Python function over a play."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_cluster.errors import InvalidFile
from spark_cluster.project.extension import load_module
from spark_cluster.userfiles.yamlfile import shown


@dataclass(frozen=True, slots=True)
class Playbook:
    """A loaded playbook.

    Args:
        name: the file's name without `.py`.
        path: the file.
        function: its `main(play, ...)` (or `play(play, ...)`).
        summary: the first line of its documentation; empty when it has none.
    """

    name: str
    path: Path
    function: Callable[..., Any]
    summary: str


def load_playbook(path: Path) -> Playbook:
    """Loads the playbook in a file.

    Raises:
        InvalidFile: it has no such function, or raises while it is imported.
    """
    what = f"playbook {path.stem}"
    module = load_module(path, f"spark_cluster_playbooks.{path.stem}", what)
    function = next(
        (f for f in (getattr(module, n, None) for n in ("main", "play")) if inspect.isfunction(f)),
        None,
    )
    if function is None or not inspect.signature(function).parameters:
        raise InvalidFile(
            f"{what}: no function main(play)",
            where=f"{shown(path)}:1",
            hint="a playbook is one: `def main(play): play.apply(play.nodes, 'network')`",
        )
    text = inspect.getdoc(module) or inspect.getdoc(function) or ""
    return Playbook(path.stem, path, function, text.partition("\n")[0])
