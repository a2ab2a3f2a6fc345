"""Faults of a node in words."""

from __future__ import annotations

import errno
import shutil
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
