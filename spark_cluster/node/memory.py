"""The memory of this node: what /proc says of it, and how the page cache is given back.

Its page cache is not free memory to CUDA, and fills what lies between what is taken: the driver,
which needs physically contiguous memory, is refused while gigabytes are free.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

SSH_STOPS_KIB = 3 * 2**20
"""MemAvailable below which a Spark stops answering SSH."""

RECLAIM_S = 300.0
"""Seconds for writing changed pages, dropping all that are clean, and compaction."""

_KIB = re.compile(r"^(\w+):\s+([0-9]{1,15}) kB$", re.MULTILINE)
_FULL = re.compile(r"^full avg10=([0-9]{1,3}(?:\.[0-9]{1,2})?) ", re.MULTILINE)


def meminfo(root: Path = Path("/")) -> dict[str, int]:
    """Return the figures of /proc/meminfo by name, KiB.

    Raises:
        OSError: it cannot be read.
    """
    text = (root / "proc/meminfo").read_text()
    return {name: int(value) for name, value in _KIB.findall(text)}


def pressure(root: Path = Path("/")) -> float | None:
    """Return the percent of the last 10 s in which every program waited for memory (PSI, `full
    avg10` of /proc/pressure/memory); None where the kernel does not tell."""
    try:
        found = _FULL.search((root / "proc/pressure/memory").read_text())
    except OSError:
        return None
    return float(found[1]) if found else None


def drop(root: Path = Path("/")) -> None:
    """Drop clean pages of files, and move what is taken together (compaction).

    Raises:
        OSError: the kernel refuses it, or has no compaction.
    """
    for setting, value in (("drop_caches", "3"), ("compact_memory", "1")):
        (root / "proc/sys/vm" / setting).write_text(value)


def main(root: str) -> int:
    """Write changed pages to the disk, so that they can be dropped too, and drop all."""
    os.sync()
    try:
        drop(Path(root))
    except OSError as error:
        print(f"{error.filename}: {error.strerror}", file=sys.stderr)
        return 1
    return 0
