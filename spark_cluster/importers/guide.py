"""Commands for DGX Sparks in the guide of a model file: a text for people, with code in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from spark_cluster.errors import UsageError
from spark_cluster.importers import commandline

_HEADING = re.compile(r"(#+)\s+(.*)")
_FENCE = re.compile(r"\s*(```|~~~)")
_SPARK = re.compile(r"\bDGX Spark\b|\bGB10\b", re.IGNORECASE)
_IMAGE = re.compile(
    r"^[ \t]*#.*\b(?:container|image)\b:?[ \t]+(\S{1,200}[:/]\S{1,200})[ \t]*$", re.MULTILINE
)
"""A comment that names the image of the command below it; of a limited length, as a long word could
be split in as many ways as its length squared."""

LONGEST = 20_000
"""Characters of a code block that is looked at."""


@dataclass(frozen=True)
class GuideCommand:
    """A command line in a guide.

    Attributes:
        title: the headings that it stands under, the last one last.
        image: that a comment of the code names; empty without one.
        reading: what it starts.
    """

    title: str
    image: str
    reading: commandline.Reading


def spark_commands(guide: object) -> list[GuideCommand]:
    """Return each launch of vLLM below a heading that names the DGX Spark, in their order."""
    if not isinstance(guide, str):
        return []
    found = []
    for title, code in _blocks(guide):
        if not _SPARK.search(title) or len(code) > LONGEST:
            continue
        try:
            reading = commandline.read(code)
        except UsageError:  # a download, a client, a command of a shell script
            continue
        image = _IMAGE.search(code)
        found.append(GuideCommand(title, image[1] if image else "", reading))
    return found


def _blocks(guide: str) -> Iterator[tuple[str, str]]:
    """Yield the headings above each block of code, and the code."""
    headings: dict[int, str] = {}
    code: list[str] | None = None
    for line in guide.splitlines():
        if _FENCE.match(line):
            if code is not None:
                yield ": ".join(headings[level] for level in sorted(headings)), "\n".join(code)
            code = [] if code is None else None
        elif code is not None:
            code.append(line)
        elif heading := _HEADING.match(line):
            level = len(heading[1])
            headings = {above: text for above, text in headings.items() if above < level}
            headings[level] = heading[2].strip(" *#")
