"""The pictures of a terminal: a recorded run's text as an SVG that loads nothing.

`docs/pictures/NAME.txt` is what the run printed, with `...` where lines are left out.
`python -m docs.generate` makes NAME.svg of it.
"""

from __future__ import annotations

import io
import re
from pathlib import Path

from rich.console import Console
from rich.text import Text

FOLDER = Path(__file__).parents[1] / "pictures"
NAMES = ("up",)
STYLES = {
    r"^\$ .*$": "bold",
    r"^✔": "bold green",
    r"^▸": "bold blue",
    r"\bchanged(?= \w+:)": "yellow",
    r"(?<= ) \d+\.\d s$": "dim",
    r"^node .*$": "dim",
    r"^ +used .*$": "dim",
    r"^GPU memory .*$": "dim",
    r"^(?:reached|vllm|to ask).*$": "dim",
}
"""Patterns of what the command line prints in a style of its own."""

_WEB_FONTS = re.compile(r"@font-face \{.*?\}", re.S)


def svg(text: str) -> str:
    """Return a terminal with a text in it, as wide as its longest line."""
    width = max(map(len, text.splitlines()))
    console = Console(record=True, width=width, file=io.StringIO(), force_terminal=True)
    for line in text.splitlines():
        shown = Text(line)
        for pattern, style in STYLES.items():
            shown.highlight_regex(pattern, style)
        console.print(shown)
    drawn = console.export_svg(title="spark-cluster", unique_id="terminal")
    return _WEB_FONTS.sub("", drawn).replace("Fira Code", "ui-monospace")


def write() -> list[Path]:
    """Write the pictures."""
    written = []
    for name in NAMES:
        path = FOLDER / f"{name}.svg"
        path.write_text(svg(path.with_suffix(".txt").read_text()), encoding="utf-8")
        written.append(path)
    return written
