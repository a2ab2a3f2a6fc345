"""The commands of README.md and of pages of docs/, run by tests in the pages' own words."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

CHECKOUT = Path(__file__).parents[1]
SOURCES = f"{CHECKOUT}:{CHECKOUT / 'packages/spark-cluster-lab'}"
"""PYTHONPATH of this checkout's two distributions, whatever else is installed."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.M | re.S)
_SHELL = {"", "sh", "text"}
_INLINE = re.compile(r"`((?:(?:\.venv/bin/)?spark-cluster|make|python -m) [^`]+)`")


def commands(text: str) -> set[str]:
    """Return the command lines of a page: those of its blocks for a shell (where a block has a
    prompt, the lines that begin with it), and those in the text; without their comments and
    without `-i lab`."""
    found = _INLINE.findall(_FENCE.sub("", text))
    for language, block in _FENCE.findall(text):
        lines = block.splitlines() if language in _SHELL else []
        prompted = [line[2:] for line in lines if line.startswith("$ ")]
        found += prompted or lines
    bare = {re.sub(r"\s+#.*", "", line).removeprefix(".venv/bin/") for line in found}
    return {line.replace("spark-cluster -i lab ", "spark-cluster ") for line in bare}


README = (CHECKOUT / "README.md").read_text()
COMMANDS = commands(README)
DOCUMENTED = COMMANDS.union(
    *(commands(page.read_text()) for page in (CHECKOUT / "docs").rglob("*.md"))
)
"""The commands of README and of all pages."""


def blocks(language: str, page: str = "README.md") -> list[str]:
    """Return the blocks of a language on a page, by default of README."""
    found = _FENCE.findall((CHECKOUT / page).read_text())
    return [text for name, text in found if name == language]


def picture(name: str) -> list[str]:
    """Return what the first command of a picture of a terminal prints: its lines, without those
    that only stand for others."""
    text = (CHECKOUT / f"docs/pictures/{name}.txt").read_text()
    first = text.split("\n$ ")[0]
    return [line for line in first.splitlines()[1:] if line.strip() not in ("", "...")]


def unlike(sample: Iterable[str], printed: str) -> list[str]:
    """Return the lines of a sample that nothing printed is like: figures may differ, and blanks."""
    known = {_form(line) for line in printed.splitlines()}
    return [line for line in sample if _form(line) not in known]


def _form(line: str) -> str:
    """Return a line without its figures; a run's id is one, and so is a digest."""
    bare = re.sub(r"\b[0-9a-f]{4,}\b|\b\d[\d.,]*", "0", line)
    return " ".join(bare.replace("-0-0 ", " ").split())


def words(line: str, instead: Mapping[str, str] | None = None) -> list[str]:
    """Return the arguments of a command of README or of a page.

    Args:
        line: the command, as it stands there.
        instead: words of the page to those that stand for them here.

    Raises:
        AssertionError: no page has such a command, or it lacks the words.
    """
    assert line in DOCUMENTED, f"neither README nor a page of docs/ has the command {line!r}"
    found, replaced = shlex.split(line)[1:], instead or {}
    assert replaced.keys() <= set(found), f"{line!r} lacks {replaced.keys() - set(found)}"
    return [replaced.get(word, word) for word in found]


def make(
    *arguments: str,
    cwd: Path = CHECKOUT,
    venv: Path = Path(sys.prefix),
    status: int = 0,
    **variables: str,
) -> str:
    """Run targets of the Makefile with an environment that is not made again.

    Args:
        arguments: targets, and make's variables.
        venv: the environment, by default the tests' own.
        variables: of the environment.

    Returns:
        Both outputs.
    """
    ready = [f"{venv}/ready{part}" for part in ("", "-for-tests", "-for-docs")]
    there = [word for path in ready for word in ("-o", path)]
    argv = ["make", "-f", str(CHECKOUT / "Makefile"), f"VENV={venv}", *there, *arguments]
    environment = {**os.environ, "PYTHONPATH": SOURCES, "COLUMNS": "80", **variables}
    environment.pop("MAKEFLAGS", None)
    done = subprocess.run(
        argv, check=False, capture_output=True, text=True, cwd=cwd, env=environment,
        stdin=subprocess.DEVNULL,
    )  # fmt: skip
    printed = done.stdout + done.stderr
    assert done.returncode == status, f"{argv} ended with {done.returncode}:\n{printed}"
    assert "Traceback" not in printed, printed
    return printed
