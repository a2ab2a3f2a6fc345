"""Measure suites: a new run of one, one that goes on, and what came of it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from spark_cluster import __version__
from spark_cluster.bench import generators
from spark_cluster.bench.expansion import expand
from spark_cluster.bench.record import RECORD, CellResult, Record, load_record, save_record
from spark_cluster.bench.repeat import continued, suite_of
from spark_cluster.bench.steps import BenchRun
from spark_cluster.bench.suite import Suite, canonical, load_suite
from spark_cluster.bench.telemetry import need_pyarrow
from spark_cluster.cli.opened import Opened, new_run
from spark_cluster.cli.results import RunSummary
from spark_cluster.config.extension import Allowances
from spark_cluster.config.recipes import load_recipe
from spark_cluster.config.schema import Document
from spark_cluster.errors import UsageError
from spark_cluster.runner.events import Options
from spark_cluster.runner.play import Play

RESULTS = "bench-results"
"""Folder for runs, below the current one."""

_FILTER = re.compile(r"(?m)^(?:local|worktree)\s+filter\.")
"""A filter that is named by the repository itself: a program, which `git status` runs."""

GIT_S = 5.0
"""Seconds that git may take."""


@dataclass(frozen=True)
class BenchResult(Document):
    """The result of measuring a suite.

    Attributes:
        run: how the run went; not ok when a cell failed.
        record: what was measured, as `run.json` has it.
        folder: with the record and the telemetry.
    """

    run: RunSummary
    record: Record
    folder: Path

    @property
    def failed(self) -> tuple[CellResult, ...]:
        """The cells that failed."""
        return tuple(cell for cell in self.record.cells if cell.status == "failed")

    def printed_as(self) -> dict[str, Any]:
        """Return the run's place and how many cells were measured and failed."""
        about = self.record.model_dump(mode="json", include={"id", "suite", "status"})
        count = {"cells": len(self.record.cells), "failed": len(self.failed)}
        return {**self.run.to_dict(), "run": about, "folder": str(self.folder), **count}


def refuse_second_run(out: Path | None) -> None:
    """Refuse a folder that has a run.

    Raises:
        UsageError: it has one.
    """
    if out is not None and (out / RECORD).exists():
        hint = f"`spark-cluster bench attach {out}` continues it; or give another folder with --out"
        raise UsageError(f"{out} holds a run already", hint=hint)


def begun(
    opened: Opened, name: str, names: tuple[str, ...], allow: Allowances, out: Path | None
) -> BenchRun:
    """Return a new run of a suite.

    Args:
        names: of recipes, to measure instead of the suite's.
        out: folder for the results; by default one of the run's id.

    Raises:
        UsageError: `out` holds a run already.
    """
    refuse_second_run(out)
    suite = load_suite(name, opened.project)
    opened.project.must_be_own(opened.project.resolve("suites", name), f"suite {name}")
    served = opened.inventory.serve.recipe
    chosen = names or tuple(suite.recipes) or ((served,) if served else ())
    words = (name, *(word for recipe in chosen for word in ("--recipe", recipe)))
    commit = commit_of(opened.project.folder)
    record = new_record(opened, suite, chosen, ("run", *words), id=new_run(), project_commit=commit)
    return of_record(opened, record, out or Path(RESULTS) / record.id, allow)


def new_record(
    opened: Opened, suite: Suite, recipes: tuple[str, ...], words: tuple[str, ...], **more: Any
) -> Record:
    """Return the record of a run that begins.

    Args:
        recipes: their names.
        words: of the command after `bench` that repeats it.
        more: other fields of the record, its id among them.
    """
    return Record(
        suite=suite.name,
        spark_cluster=__version__,
        started=datetime.now(UTC),
        status="running",
        tool=generators.of(suite).tool(suite),
        setups=(),
        cells=(),
        command=("spark-cluster", "bench", *words),
        recipes=recipes,
        client=opened.inventory.head.name,
        **{"suite_text": canonical(suite), **more},
    )


def of_folder(opened: Opened, folder: Path) -> BenchRun:
    """Return a run to look at, or to end."""
    return of_record(opened, load_record(folder), folder, known=False)


def of_record(
    opened: Opened,
    record: Record,
    folder: Path,
    allow: Allowances | None = None,
    *,
    known: bool = True,
) -> BenchRun:
    """Return the run that a record is of, as its suite says it.

    Args:
        known: with the recipes; to look at a run, or to end it, they are not needed.

    Raises:
        InvalidFile: the record's suite is none.
    """
    allowed = opened.allowances(allow or Allowances())
    if record.repeats is not None:
        # All, whatever --limit selects: cells that are left out now have a result for good.
        return continued(record, folder, allowed, len(opened.inventory.nodes))
    suite = suite_of(record, str(folder / RECORD))
    recipes = {}
    for name in record.recipes if known else ():
        recipes[name] = load_recipe(name, opened.project, allowed)
        opened.project.must_be_own(opened.project.resolve("recipes", name), f"recipe {name}")
    return BenchRun(
        record=record, suite=suite, expansion=expand(suite, recipes, record.recipes), folder=folder
    )


def measure(
    opened: Opened,
    made: BenchRun,
    options: Options,
    how: Mapping[str, bool],
    *,
    run_id: str = "",
    before: Callable[[Play], None] | None = None,
) -> BenchResult:
    """Measure what has no result yet.

    Args:
        how: `keep` and `stop_at_first_failure`, as the playbook `bench` takes them.
        before: is called when the nodes are connected, before anything is measured.

    Raises:
        UsageError: a selection of roles would bring up part of a server.
        SparkClusterError: a node is not reached, or a server does not start where that ends it.
    """
    if options.selection.partial and not options.check:
        raise UsageError(
            "--tags, --skip-tags and --start-at would bring up part of a server only",
            hint="leave them out, or add --check",
        )
    need_pyarrow()  # not after hours of measuring
    title = f"bench run {made.suite.name}"
    with opened.play(title, opened.nodes, options, run_id=run_id) as run:
        playbook = opened.project.load_playbook("bench")
        play = run.open()
        if before is not None:
            before(play)
        if not options.check:
            save_record(made.record, made.folder)
        playbook.function(play, run=made, **how)
        run.finish()
        ok = all(cell.status != "failed" for cell in made.record.cells)
        return BenchResult(run.summary(ok=ok), made.record, made.folder)


def commit_of(folder: Path) -> str:
    """Return the commit of a folder, with ` (changed)` when files differ; empty without git.

    It may be somebody else's: what its repository would have git run to compare files is not run.
    """
    try:
        commit = _git(folder, "rev-parse", "--short", "HEAD")
        settings = _git(folder, "config", "--list", "--includes", "--show-scope", "--name-only")
        if _FILTER.search(settings):
            return f"{commit} (not compared)"
        compared = ("--porcelain", "--untracked-files=no", "--ignore-submodules=all")
        changed = _git(folder, "status", *compared)
    except (OSError, subprocess.SubprocessError):
        return ""
    return f"{commit} (changed)" if changed else commit


def _git(folder: Path, *words: str) -> str:
    safe = ("-c", "core.fsmonitor=false", "-c", "core.hooksPath=/dev/null")
    argv = ["git", *safe, "-C", str(folder), "--no-optional-locks", *words]
    env = {**os.environ, "GIT_ALLOW_PROTOCOL": "none"}  # no missing object is fetched
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=GIT_S, env=env)
    return done.stdout.strip()
