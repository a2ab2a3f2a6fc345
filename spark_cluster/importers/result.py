"""The result of an import: a recipe, and a remark on everything that is not in it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Left:
    """Something of the source that the recipe does not hold.

    Attributes:
        what: as the source has it; a secret's value is never in it.
        why: and where it goes instead, if anywhere.
        consequence: what does not work without it, or is different; empty when nothing is.
        blocks: it cannot work without it.
    """

    what: str
    why: str
    consequence: str = ""
    blocks: bool = False

    @property
    def entry(self) -> dict[str, str | bool]:
        """The entry of the recipe's not_carried_over."""
        found = {"what": self.what, "why": self.why, "consequence": self.consequence}
        return {**found, **({"blocks": True} if self.blocks else {})}


@dataclass(frozen=True, slots=True)
class Carried:
    """Something of the source that the recipe holds under another name."""

    what: str
    where: str


@dataclass(frozen=True, slots=True)
class Offer:
    """Another configuration of the same file that is for a DGX Spark.

    Attributes:
        option: of `recipes import`, which takes it.
        what: it is.
    """

    option: str
    what: str


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
        offers: other configurations of the source that are for this hardware.
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
    offers: list[Offer] = field(default_factory=list)
    to_do: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
