"""`python -m benchmarks.foreign_recipes FOLDER...`: import what is there, plan each offline.

Each folder is a checkout of a public repository with recipes of sparkrun, spark-vllm-docker or
vllm-project/recipes. Of each recipe a plan is made at TP 1 and TP 2. One that says go or no-go, or
that such models (speech, pictures) are not served, is a verdict; one that ends in another error is
not. Nothing of what is imported is run.
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from spark_cluster.config.launch import of_recipe
from spark_cluster.config.project import Project
from spark_cluster.config.recipes import load_recipe
from spark_cluster.errors import Refused, SparkClusterError
from spark_cluster.importers.files import read_file, write
from spark_cluster.models.lookup import cached
from spark_cluster.plan.planner import PlannedLoad, Planner, of_a_recipe
from spark_cluster.plan.room import assumed

SIZES = (1, 2)
SHOWN = 110

VERDICTS = ("go", "no-go", "not served")

Outcome = tuple[str, str]
"""The model, and the verdict or the error."""


def imported(checkout: Path, into: Path) -> Iterator[Path]:
    """Import each file of a checkout that is a recipe; yield the files that were written."""
    for file in sorted(checkout.rglob("*.yaml")):
        if file.is_symlink():
            continue
        try:
            made = write(read_file(file))
        except SparkClusterError:  # not a recipe, or one that cannot be carried over
            continue
        path = into / str(len(list(into.iterdir()))) / f"{made.name}.yaml"
        path.parent.mkdir()
        path.write_text(made.text, encoding="utf-8")
        for name, content in made.files.items():
            beside = path.parent / name
            beside.parent.mkdir(parents=True, exist_ok=True)
            beside.write_bytes(content if isinstance(content, bytes) else content.encode())
        yield path


def outcomes(path: Path, planner: Planner) -> Iterator[Outcome]:
    """Plan a recipe at each size."""
    recipe = load_recipe(path, planner.project)
    for tp in SIZES:
        subject = of_a_recipe(recipe, of_recipe(recipe, tp))
        rooms = assumed(max(2, subject.launch.ranks))
        try:
            plan = planner.plan(subject, rooms, PlannedLoad())
        except Refused:
            yield recipe.model.name, "not served"
        except SparkClusterError as error:
            yield recipe.model.name, error.message
        else:
            yield recipe.model.name, "go" if plan.feasible else "no-go"


def main() -> None:
    """Print the share of verdicts of each checkout, and the errors with their models."""
    errors: Counter[tuple[str, str]] = Counter()
    verdicts = every = 0
    for checkout in map(Path, sys.argv[1:]):
        with tempfile.TemporaryDirectory() as folder:
            planner = Planner(Project(Path(folder)), cached())
            paths = list(imported(checkout, Path(folder)))
            found = [one for path in paths for one in outcomes(path, planner)]
        said = [one for one in found if one[1] in VERDICTS]
        errors.update((model, text[:SHOWN]) for model, text in found if text not in VERDICTS)
        go = sum(text == "go" for _, text in found)
        share = 100 * len(said) / max(1, len(found))
        print(f"{checkout.name:40} {len(paths):4} recipes, {share:5.1f} % verdicts ({go} go)")
        verdicts, every = verdicts + len(said), every + len(found)
    print(f"\n{verdicts} of {every} verdicts, {100 * verdicts / max(1, every):.1f} %\n")
    for (model, message), number in errors.most_common():
        print(f"{number:4} {model}: {message}")


if __name__ == "__main__":
    main()
