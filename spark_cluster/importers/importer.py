"""The interface of importers: each reads one kind of file for `recipes import`, `plan`, `lint`.

Other packages add theirs by an entry point of the group `spark_cluster.importers`, whose object is
an `Importer`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from spark_cluster.config.yamlfile import Sourced, load
from spark_cluster.errors import InvalidFile, UsageError
from spark_cluster.importers.source import Source

LARGEST_TEXT = 1 << 20
"""Characters of a file that is looked at as text."""


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
    claims: Callable[[dict[str, Any]], bool]
    reader: Callable[[Sourced, Choice], Source]

    def recognises(self, given: Given) -> bool:
        return not isinstance(given.loaded, InvalidFile) and self.claims(given.loaded.data)

    def read(self, given: Given, choice: Choice) -> Source:
        if isinstance(given.loaded, InvalidFile):
            raise given.loaded
        return self.reader(given.loaded, choice)
