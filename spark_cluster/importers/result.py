"""The result of an import: a recipe, and a remark on everything that is not in it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Left:
    """Something of the source that the recipe does not hold.

    Attributes:
        what: as the source has it; a secret's value is never in it.
        why: and where it goes instead, if anywhere.
    """

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class Carried:
    """Something of the source that the recipe holds under another name."""

    what: str
    where: str


@dataclass(frozen=True, slots=True)
class Imported:
    """A recipe made from something else.

    Attributes:
        kind: what it was made from.
        name: of the recipe, which is also the name of its file.
        text: the file: YAML with comments, which our own reader takes.
        kept: flags and variables that are in it as they were.
        carried: what became something of another name.
        left_out: what the recipe does not hold, and why.
        notes: what was read with goodwill or guessed.
        to_do: what must be filled in before it can be served.
        files: next to the recipe, by their path relative to it.
    """

    kind: str
    name: str
    text: str
    kept: list[str] = field(default_factory=list)
    carried: list[Carried] = field(default_factory=list)
    left_out: list[Left] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    to_do: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
