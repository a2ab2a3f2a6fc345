"""A known issue that was found: what was seen, why, and what to change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from spark_cluster.config.recipe_schema import EngineValue
from spark_cluster.config.schema import Document, Hidden

Severity = Literal["error", "warning", "info"]
"""It will not work or answers wrongly; it is slower, unsafe or at risk; good to know."""

ORDER: dict[Severity, int] = {"error": 0, "warning": 1, "info": 2}

Effect = Literal["blocks", "slows", "risks"]
"""What comes of it on a node: nothing is served, everything is slower, or it may end."""

EditKind = Literal["flag", "env", "image", "docker", "recipe"]


@dataclass(frozen=True)
class Edit:
    """A change that `lint --fix` can carry out.

    Attributes:
        kind: a flag of vLLM, a variable, the image, an option of `docker run`, or a top-level key
            of the recipe.
        name: of the flag (without dashes), variable, option or key; empty for the image.
        value: the new one; None takes it out.
        replaces: the value of an option of `docker run` that goes, where it may be given several
            times; None adds one.
    """

    kind: EditKind
    name: str
    value: EngineValue | None
    replaces: str | None = None

    @property
    def written(self) -> str:
        """The thing that changes, as it is written on a command line or in a recipe."""
        dashes = "--" if self.kind in ("flag", "docker") else ""
        return f"{dashes}{self.name}" if self.name else self.kind


@dataclass(frozen=True)
class KnownIssueMatch(Document):
    """A known issue that was found.

    Attributes:
        id, title, severity, cause, fix, source: of the issue, or what a rule knows better.
        found: what exactly was seen.
        flag: what to change, as it is written (`--tool-call-parser`, `VLLM_CACHE_ROOT`, `image`);
            empty when nothing in the launch is to be changed.
        edit: the change, where it can be made by itself.
        where: the log in which it was seen; empty for a plan.
    """

    id: str
    severity: Severity
    title: str
    found: str
    cause: str
    fix: str
    source: str
    flag: str = ""
    edit: Hidden[Edit | None] = None
    where: Hidden[str] = ""


def ordered(findings: list[KnownIssueMatch]) -> list[KnownIssueMatch]:
    """Return matches with errors first; within a severity as they came."""
    return sorted(findings, key=lambda finding: ORDER[finding.severity])
