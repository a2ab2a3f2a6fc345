"""swapoff: of the node's own swap file, which is only shown; the machine's swap is out of reach."""

from __future__ import annotations

import sys

from .hardware import SWAP_FILE, ask_for_refresh
from .state import load, save


def main(argv: list[str]) -> int:
    names = [word for word in argv if not word.startswith("-")]
    everything = "-a" in argv or "--all" in argv
    if not everything and names != [SWAP_FILE]:
        print(f"swapoff: {' '.join(names) or '?'}: swapoff failed: Invalid argument",
              file=sys.stderr)  # fmt: skip
        return 4
    if load()["swap_total_kb"]:
        save({"swap_total_kb": 0})
        ask_for_refresh()
    return 0
