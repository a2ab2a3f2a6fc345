"""The answers of the last `verify` of each recipe and size, kept on the laptop and compared.

A model that is split over two nodes is the same model: at temperature 0 it gives the answers that
it gives on one, but for rounding.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from spark_cluster.errors import Failed
from spark_cluster.node import durable
from spark_cluster.node.replies import at, decoded

COMPARED = ("answer", "short-answers", "structured-output", "vision-colour")
"""Checks whose answers are short enough to be the same at every size."""

FORMAT = 1

LARGEST = 1_000_000
"""Bytes of a file that is read."""


@dataclass(frozen=True)
class OtherAnswer:
    """A check whose answer is another one at another size.

    Attributes:
        id: of the check.
        now: the answer of this verify.
        before: the answer at the other size.
    """

    id: str
    now: str
    before: str


@dataclass(frozen=True)
class ComparedSize:
    """The answers of this verify next to those of another tensor-parallel size.

    Attributes:
        tp: the other size.
        at: when it was verified, ISO 8601 in UTC.
        same: checks with the same answer.
        different: those with another one.
    """

    tp: int
    at: str
    same: tuple[str, ...]
    different: tuple[OtherAnswer, ...]


@dataclass(frozen=True)
class KeptAnswers:
    """The answers of one verify.

    Attributes:
        recipe: its name.
        text: hash of what was served, recipe and overrides; others' answers are not compared.
        answers: check to its answer, of those that held.
        at: ISO 8601 in UTC; now by default.
    """

    recipe: str
    tp: int
    text: str
    answers: Mapping[str, str] = field(default_factory=dict)
    at: str = field(
        default_factory=lambda: datetime.fromtimestamp(int(time.time()), UTC).isoformat()
    )

    def compared(self, folder: Path) -> tuple[ComparedSize, ...]:
        """Return this one next to what is kept of the same server at other sizes."""
        found = (read(path) for path in sorted(folder.glob(f"{self.recipe}.tp*.json")))
        return tuple(
            self._next_to(kept)
            for kept in found
            if kept is not None
            and (kept.recipe, kept.text) == (self.recipe, self.text)
            and kept.tp != self.tp
            and self.answers.keys() & kept.answers.keys()
        )

    def _next_to(self, kept: KeptAnswers) -> ComparedSize:
        both = [check for check in self.answers if check in kept.answers]
        same = tuple(check for check in both if self.answers[check] == kept.answers[check])
        different = tuple(
            OtherAnswer(check, self.answers[check], kept.answers[check])
            for check in both
            if check not in same
        )
        return ComparedSize(kept.tp, kept.at, same, different)

    def keep(self, folder: Path) -> None:
        """Write it in place of the last one of this size; checks that did not run keep theirs.

        Raises:
            Failed: the file cannot be written.
        """
        path = folder / f"{self.recipe}.tp{self.tp}.json"
        last = read(path)
        known = last.answers if last is not None and last.text == self.text else {}
        new = replace(self, answers={**known, **self.answers})
        document = {"format": FORMAT, **asdict(new)}
        try:
            durable.make_folder(folder)
            durable.write_file(path, json.dumps(document, indent=1).encode())
        except OSError as error:
            raise Failed(
                f"the answers cannot be kept: {error.strerror}",
                where=str(path),
                hint="XDG_STATE_HOME names another folder for them",
            ) from None


def read(path: Path) -> KeptAnswers | None:
    """Return what a file keeps; None where it is not there or is none of ours."""
    try:
        if path.stat().st_size > LARGEST:
            return None
        text = path.read_text(encoding="utf-8")
        found = TypeAdapter(KeptAnswers).validate_json(text, strict=True)
    except (OSError, UnicodeDecodeError, ValidationError):
        return None
    return found if at(decoded(text), "format") == FORMAT else None
