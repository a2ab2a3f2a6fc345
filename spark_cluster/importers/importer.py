"""The interface of importers: each reads one kind of file for `recipes import`, `plan`, `lint`.

An importer makes a `Source` of a file; `recipe_text.write` makes an `Imported` of that: a recipe,
and a remark on everything that is not in it.

Other packages add theirs by an entry point of the group `spark_cluster.importers`, whose object is
an `Importer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from spark_cluster.config.launch import Launch
from spark_cluster.config.schema import Hidden, printed
from spark_cluster.config.yamlfile import Sourced, load
from spark_cluster.errors import InvalidFile, UsageError

LARGEST_TEXT = 1 << 20
"""Characters of a file that is looked at as text."""


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
    consequence: Hidden[str] = ""
    blocks: Hidden[bool] = False

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


@dataclass(slots=True)
class Source:
    """A configuration written for another tool.

    Attributes:
        launch: what it starts.
        kind: what it was written as, `sparkrun recipe`.
        title: what it calls itself; empty when it has no name.
        description: in its own words.
        revision: of the model; empty for the newest.
        sizes: fewest and most nodes, when it says so; no number where it states no limit.
        default_tp: tensor-parallel size that it takes when none is asked for, where that is not
            the launch's own.
        generates: speech, images or video; empty for a model of text.
        supported: versions of vLLM, such as '>=0.25'.
        origin: the file, or what stands for it.
        left_out: what could not even become part of a launch.
        notes: what was read with goodwill.
        mods: scripts that change the container, as the file names them.
        path: the file, next to which mods may lie.
        offers: other configurations of it that are for this hardware.
    """

    launch: Launch
    kind: str = "command line"
    title: str = ""
    description: str = ""
    revision: str = ""
    sizes: tuple[int, int | None] | None = None
    default_tp: int | None = None
    generates: str = ""
    supported: str = ""
    origin: str = "a pasted command line"
    left_out: list[Left] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    mods: list[str] = field(default_factory=list)
    path: Path | None = None
    offers: list[Offer] = field(default_factory=list)


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
    text: Hidden[str]
    kept: list[str] = field(default_factory=list)
    carried: list[Carried] = field(default_factory=list)
    left_out: list[Left] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    offers: list[Offer] = field(default_factory=list)
    to_do: list[str] = field(default_factory=list)
    files: Hidden[dict[str, bytes]] = field(default_factory=dict)

    @printed
    def not_carried_over(self) -> list[dict[str, str | bool]]:
        """The entries of the recipe of that name."""
        return [one.entry for one in self.left_out if one.consequence]


@dataclass(frozen=True, slots=True)
class Choice:
    """The user's choice in a file that offers several configurations.

    Args:
        variant: of the checkpoint.
        features: to switch on, `NAME=MODE` for one of its modes, `no-NAME` to switch off.
    """

    variant: str = "default"
    features: tuple[str, ...] = ()


def no_choice(choice: Choice) -> None:
    """Raise UsageError when a variant or feature was chosen for a file that has none."""
    if choice != Choice():
        raise UsageError(
            "--variant and --feature are for model files of vllm-project/recipes",
            hint="leave them out for this file",
        )


@dataclass(frozen=True)
class Given:
    """A file that someone wants to import; it is read once, when that is wanted."""

    path: Path

    @cached_property
    def loaded(self) -> Sourced | InvalidFile:
        """Its YAML (or JSON) with the position of every value, or why it is none."""
        try:
            return load(self.path, "file", lenient=True)
        except InvalidFile as error:
            return error

    @property
    def error(self) -> InvalidFile | None:
        """Why it is no YAML."""
        return self.loaded if isinstance(self.loaded, InvalidFile) else None

    @property
    def data(self) -> Mapping[str, Any]:
        """Its YAML as plain data; empty when it is none."""
        return {} if isinstance(self.loaded, InvalidFile) else self.loaded.data

    @cached_property
    def text(self) -> str:
        """Its text; empty when it is none or too long to be read as one."""
        try:
            with self.path.open("rb") as stream:
                text = stream.read(LARGEST_TEXT + 1).decode("utf-8-sig")
        except (OSError, UnicodeDecodeError):
            return ""
        return text if len(text) <= LARGEST_TEXT else ""


class Importer(Protocol):
    """Reads one kind of file."""

    @property
    def name(self) -> str:
        """The kind of file, in the words of messages: `a recipe of sparkrun`."""

    def recognises(self, given: Given) -> bool:
        """Return whether a file is of this kind, by what is in it; it may be anything."""

    def read(self, given: Given, choice: Choice) -> Source:
        """Return what a file says.

        Args:
            choice: variant and features; `Choice()` when the user named none.

        Raises:
            InvalidFile: it is wrong, with the line.
            UsageError: it has no such variant or feature.
        """


@dataclass(frozen=True)
class YamlImporter:
    """An importer of a kind of YAML file.

    Args:
        name: what it reads, in the words of messages.
        claims: whether data are of this kind.
        reader: reads data of this kind.
    """

    name: str
    claims: Callable[[Mapping[str, Any]], bool]
    reader: Callable[[Sourced, Choice], Source]

    def recognises(self, given: Given) -> bool:
        return not given.error and self.claims(given.data)

    def read(self, given: Given, choice: Choice) -> Source:
        if isinstance(given.loaded, InvalidFile):
            raise given.loaded
        return self.reader(given.loaded, choice)
