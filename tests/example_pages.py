"""Examples of the documentation, as they stand on its pages."""

import re
from pathlib import Path

HOW_TO = Path(__file__).parents[1] / "docs" / "how-to"

_FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"`([\w./-]+\.(?:py|toml|yaml))`")


def files_of(page: str) -> dict[str, str]:
    """The files of a page: each is a code block below a paragraph that names it."""
    text = (HOW_TO / page).read_text(encoding="utf-8")
    found, end = {}, 0
    for fence in _FENCE.finditer(text):
        named = _FILE.findall(text[end : fence.start()])
        if named:
            found[named[-1]] = fence[2]
        end = fence.end()
    return found


def write_files(page: str, folder: Path) -> dict[str, Path]:
    """Write the files of a page below a folder."""
    paths = {name: folder / name for name in files_of(page)}
    for name, text in files_of(page).items():
        paths[name].parent.mkdir(parents=True, exist_ok=True)
        paths[name].write_text(text, encoding="utf-8")
    return paths
