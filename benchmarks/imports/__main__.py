"""Counts which recipes of other tools are imported and planned, and why others are not.

`python -m benchmarks.imports FOLDER...`; see the README next to this file.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from benchmarks.imports.ask import Outcome, ask_all, table


def main(words: Sequence[str]) -> int:
    """The exit status: 1 when a share that was asked for is not reached."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.imports", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, help="folders or files of recipes")
    parser.add_argument("--json", action="store_true", help="one JSON line a file")
    parser.add_argument("--why", metavar="TEXT", help="name the files with this text in the reason")
    parser.add_argument(
        "--least", type=float, metavar="SHARE", help="fail below this share of answers, 0 to 1"
    )
    given = parser.parse_args(words)
    outcomes = [outcome for folder in given.folders for outcome in ask_all(folder)]
    if given.json:
        for outcome in outcomes:
            print(json.dumps(outcome.to_dict()))
    else:
        print(table(outcomes))
        _name(outcomes, given.why)
    return int(given.least is not None and _share(outcomes) < given.least)


def _name(outcomes: list[Outcome], why: str | None) -> None:
    for outcome in outcomes:
        if why is not None and why.lower() in f"{outcome.result}: {outcome.reason}".lower():
            print(f"{outcome.file}: {outcome.result}: {outcome.reason}")


def _share(outcomes: list[Outcome]) -> float:
    counts = Counter(outcome.answered for outcome in outcomes if outcome.is_recipe)
    return counts[True] / max(1, counts.total())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
