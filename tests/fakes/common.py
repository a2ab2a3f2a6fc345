"""Common parts of the fake commands: state in a file, a log of calls, unknown options refused."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any


class Refuse(Exception):
    """End with a status and a text on standard error."""

    def __init__(self, status: int, text: str = "") -> None:
        self.status, self.text = status, text


def run(main: Callable[..., None], root: str, fake: str, command: str, argv: list[str]) -> int:
    """The command's exit status; what it prints goes to the standard outputs."""
    path = Path(root) / "fakes" / f"{fake}.json"
    path.parent.mkdir(exist_ok=True)
    state = json.loads(path.read_text()) if path.exists() else {}
    state.setdefault("calls", []).append([command, *argv])
    status = 0
    try:
        main(state, Path(root), command, argv)
    except Refuse as refused:
        sys.stderr.write(refused.text + "\n" if refused.text else "")
        status = refused.status
    whole = path.with_suffix(".new")  # others may read it meanwhile
    whole.write_text(json.dumps(state))
    whole.replace(path)
    return status


def options(
    argv: list[str], flags: tuple[str, ...], valued: tuple[str, ...]
) -> tuple[dict[str, list[str]], list[str]]:
    """Options (with all their values) and the rest, from the first word that is no option."""
    found: dict[str, list[Any]] = {}
    words = list(argv)
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word in flags:
            found.setdefault(word, []).append("")
        elif word in valued:
            found.setdefault(word, []).append(words.pop(0))
        else:
            raise Refuse(125, f"unknown flag: {word}")
    return found, words
