"""A notebook's cells of code, run one after another as a kernel does."""

import json
from pathlib import Path
from typing import Any


def cells(path: Path) -> list[str]:
    """Return the code of each cell."""
    found = json.loads(path.read_text())["cells"]
    return ["".join(cell["source"]) for cell in found if cell["cell_type"] == "code"]


def run(path: Path, **replaced: str) -> dict[str, Any]:
    """Run all cells; return what they have left.

    Args:
        replaced: names to the code that is assigned to them in place of the notebook's own.
    """
    space: dict[str, Any] = {"__name__": "__main__"}
    for number, code in enumerate(cells(path), 1):
        lines = [
            f"{name} = {replaced[name]}" if name in replaced else line
            for line in code.splitlines()
            for name in [line.partition(" = ")[0]]
        ]
        exec(compile("\n".join(lines), f"{path.name} cell {number}", "exec"), space)
    return space
