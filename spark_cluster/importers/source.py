"""An import source before it becomes a recipe: a launch, and what a launch does not hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from spark_cluster.config.launch import Launch
from spark_cluster.importers.result import Left


@dataclass(slots=True)
class Source:
    """A configuration written for another tool.

    Attributes:
        launch: what it starts.
        kind: what it was written as, `sparkrun recipe`.
        title: what it calls itself; empty when it has no name.
        description: in its own words.
        revision: of the model; empty for the newest.
        sizes: fewest and most nodes, when it says so.
        supported: versions of vLLM, such as '>=0.25'.
        origin: the file, or what stands for it.
        left_out: what could not even become part of a launch.
        notes: what was read with goodwill.
        mods: scripts that change the container, as the file names them.
        path: the file, next to which mods may lie.
    """

    launch: Launch
    kind: str = "command line"
    title: str = ""
    description: str = ""
    revision: str = ""
    sizes: tuple[int, int] | None = None
    supported: str = ""
    origin: str = "a pasted command line"
    left_out: list[Left] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    mods: list[str] = field(default_factory=list)
    path: Path | None = None
