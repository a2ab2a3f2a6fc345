"""Temporary folders of tests in memory: what the program writes it also syncs, and waiting for a
disk is a third of the time of those tests."""

import os
from pathlib import Path

MEMORY = Path("/dev/shm")
ROOM_BYTES = 4 << 30
"""Free space that is needed: the largest files of tests, in several workers."""

VARIABLE = "PYTEST_DEBUG_TEMPROOT"
"""Where pytest makes its temporary folders, unless --basetemp is given."""


def suits(folder: Path) -> bool:
    """Return whether programs of the tests can be written there and run."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return False
    room = found.f_bavail * found.f_frsize
    return os.access(folder, os.W_OK) and not found.f_flag & os.ST_NOEXEC and room >= ROOM_BYTES


def use(folder: Path = MEMORY) -> None:
    """Have pytest make its folders there, if it suits and the user has named no other place."""
    if "TMPDIR" not in os.environ and suits(folder):
        os.environ.setdefault(VARIABLE, str(folder))
