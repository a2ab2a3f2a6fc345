"""A playbook: what to do, in order, as a plain Python function over a play."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spark_cluster.config.yamlfile import shown
from spark_cluster.errors import InvalidFile
from spark_cluster.loader.extension import Extensions


@dataclass(frozen=True, slots=True)
class Playbook:
    """A loaded playbook.

    Args:
        name: the file's name without `.py`.
        path: the file.
        function: its `main(play, ...)` (or `play(play, ...)`).
    """

    name: str
    path: Path
    function: Callable[..., Any]


def load_playbook(path: Path, extensions: Extensions) -> Playbook:
    """Load the playbook in a file.

    Args:
        extensions: of the project that it is used in.

    Raises:
        InvalidFile: it has no such function, or raises while it is imported.
    """
    what = f"playbook {path.stem}"
    module = extensions.load_module(path, f"playbooks.{path.stem}", what)
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
    return Playbook(path.stem, path, function)
