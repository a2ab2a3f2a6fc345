"""Messages for faults of a node."""

from __future__ import annotations

import errno
import shutil
import traceback
from pathlib import Path

from spark_cluster.node.project_code import project_place


def explain(error: OSError, root: Path = Path("/")) -> str:
    """Describe an operating system's error: where, and how bad."""
    name = str(error.filename or "")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        folder = Path(name).parent if name else root
        while not folder.exists():
            folder = folder.parent
        free = shutil.disk_usage(folder).free // 1024
        return f"no space left on the disk of {folder} ({free} KiB free)"
    text = error.strerror or str(error)
    return f"{name}: {text.lower()}" if name else text


OUR_FAULT = "this is a bug in spark-cluster, not a fault of the node: please report it"


def unforeseen(error: Exception) -> tuple[str, str]:
    """Return an exception that nothing foresaw in words, with its place, and whose fault it is."""
    text = f"{type(error).__name__}: {error}"
    own = project_place(error)
    if own:
        file = own.rpartition(":")[0]
        return f"{text} ({own})", f"this is a fault of the project's {file}: correct it there"
    place = traceback.extract_tb(error.__traceback__)[-1]
    return f"{text} ({Path(place.filename).name}:{place.lineno})", OUR_FAULT
