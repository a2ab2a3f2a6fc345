"""One recipe of another tool: what the importer makes of it, and what the planner says of that."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from spark_cluster.config.launch import of_recipe
from spark_cluster.config.project import Project
from spark_cluster.config.recipes import load_recipe
from spark_cluster.errors import SparkClusterError
from spark_cluster.importers.files import read_file, write
from spark_cluster.importers.importer import Imported
from spark_cluster.plan.planner import PlannedLoad, Planner, of_a_recipe
from spark_cluster.plan.room import assumed

Result = Literal[
    "no recipe",
    "not imported",
    "shape not known",
    "not planned",
    "lacks a part",
    "no-go",
    "go",
]

RESULTS: tuple[Result, ...] = (
    "go", "no-go", "lacks a part", "shape not known", "not planned", "not imported", "no recipe",
)  # fmt: skip
"""In the order of the table."""

NODES = 8
"""Sparks that the plans assume: more than any public recipe asks for."""


@dataclass(frozen=True)
class Outcome:
    """What became of one file.

    Attributes:
        reason: why it came no further, in the words that the user reads.
        kind: what it was read as.
        left_out: entries that the import left out.
    """

    file: str
    result: Result
    reason: str = ""
    kind: str = ""
    left_out: int = 0

    @property
    def is_recipe(self) -> bool:
        return self.result != "no recipe"

    @property
    def answered(self) -> bool:
        """True if the plan says go or no-go."""
        return self.result in ("go", "no-go", "lacks a part")

    def to_dict(self) -> dict[str, Any]:
        """Return it as a line of JSON."""
        return asdict(self)


def ask_all(folder: Path) -> Iterator[Outcome]:
    """Import and plan every YAML file below a folder, or one file, in the order of names."""
    found = [folder] if folder.is_file() else sorted(folder.rglob("*.y*ml"))
    with tempfile.TemporaryDirectory() as scratch:
        project = Project(Path(scratch))
        planner = Planner(project)
        for path in found:
            yield ask(path, planner)


def ask(path: Path, planner: Planner) -> Outcome:
    """Import and plan one file; what is raised besides errors of ours is a defect, and raised."""
    try:
        imported = write(read_file(path), name="imported")
    except SparkClusterError as error:
        unknown = error.message.startswith(("not a file of a known kind", "this is a"))
        other = "circular" in error.message
        return Outcome(
            str(path), "no recipe" if unknown and not other else "not imported", error.message
        )
    return _planned(path, imported, planner)


def _planned(path: Path, imported: Imported, planner: Planner) -> Outcome:
    left = len(imported.left_out)
    target = planner.project.folder / "imported.yaml"
    target.write_text(imported.text)
    try:
        recipe = load_recipe(target, planner.project)
        sizes = recipe.tensor_parallel
        subject = of_a_recipe(recipe, of_recipe(recipe, sizes.default or sizes.min))
        plan = planner.plan(subject, assumed(NODES), PlannedLoad())
    except SparkClusterError as error:
        unknown = "shape" in error.message and "known" in error.message
        result: Result = "shape not known" if unknown else "not planned"
        return Outcome(str(path), result, error.message, imported.kind, left)
    reasons = [*plan.reasons, *(i.title for i in plan.issues if i.severity == "error")]
    result = "no-go" if reasons else "lacks a part" if plan.obstacles else "go"
    why = "; ".join([*reasons, *plan.obstacles])
    return Outcome(str(path), result, why, imported.kind, left)


def table(outcomes: list[Outcome]) -> str:
    """Counts by result and kind of file, and the share that was answered."""
    kinds = sorted({outcome.kind for outcome in outcomes if outcome.kind})
    counts = Counter((outcome.result, outcome.kind) for outcome in outcomes)
    totals = Counter(outcome.result for outcome in outcomes)
    rows = [["result", "files", *kinds]]
    rows += [
        [result, str(totals[result]), *(str(counts[result, kind]) for kind in kinds)]
        for result in RESULTS
    ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    recipes = sum(outcome.is_recipe for outcome in outcomes)
    answered = sum(outcome.answered for outcome in outcomes)
    imported = sum(outcome.is_recipe and outcome.result != "not imported" for outcome in outcomes)
    lines.append(f"{recipes} recipes: {imported} imported, {answered} planned")
    return "\n".join(line.rstrip() for line in lines)
