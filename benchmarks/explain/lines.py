"""Command lines that were posted, what came of them, and what `lint` says."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from spark_cluster.config.project import Project
from spark_cluster.issues import lint_target
from spark_cluster.issues.entries import KnownIssueMatch

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "posted_commands.json"


@dataclass(frozen=True)
class PostedLine:
    """A command line with what happened.

    Attributes:
        url: where it was posted.
        command: the line.
        served: it came up and answered.
        what: what happened, in words.
        finds: id of the issue by which `lint` can know of a failure; empty where it cannot.
    """

    url: str
    command: str
    served: bool
    what: str
    finds: str = ""


def posted() -> list[PostedLine]:
    """Return all lines."""
    return [PostedLine(**one) for one in json.loads(DATA.read_text(encoding="utf-8"))]


def linted(line: PostedLine) -> list[KnownIssueMatch]:
    """Return what `lint` finds in a line."""
    target = lint_target.of_command(line.command, None)
    return lint_target.findings(target, target.text, Project(ROOT))


def worst(line: PostedLine) -> str:
    """Return the worst severity besides hygiene; `clean` without any."""
    from spark_cluster.issues.entries import catalogue

    known = catalogue()
    found = {f.severity for f in linted(line) if not known[f.id].hygiene}
    return next((s for s in ("error", "warning", "info") if s in found), "clean")


def confusion() -> Counter[tuple[str, str]]:
    """Return how many lines that served or failed have which worst severity."""
    return Counter(("served" if line.served else "failed", worst(line)) for line in posted())
