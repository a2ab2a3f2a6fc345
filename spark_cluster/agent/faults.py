"""Faults of a node in words."""

from __future__ import annotations

import errno
import shutil
import traceback
from pathlib import Path


def explain(error: OSError, root: Path = Path("/")) -> str:
    """An operating system's error in words that say where and how bad."""
    name = str(error.filename or "")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        folder = Path(name).parent if name else root
        while not folder.exists():
            folder = folder.parent
        free = shutil.disk_usage(folder).free // 1024
        return f"no space left on the disk of {folder} ({free} KiB free)"
    text = error.strerror or str(error)
    return f"{name}: {text.lower()}" if name else text


OUR_FAULT = "this is a fault of spark-cluster, not of the node: please report it"


def our_fault(error: Exception) -> str:
    """An exception that nothing foresaw, with the place where it was raised."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{type(error).__name__}: {error} ({Path(place.filename).name}:{place.lineno})"
