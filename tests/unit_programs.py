"""Programs of units as they are on a node: archives, with nothing else of the package."""

import sys
from pathlib import Path

from spark_cluster.node import own_program
from spark_cluster.runner import wire


def installed(folder: Path, module: str, *words: str) -> list[str]:
    """Put the archive of a program into a folder; return the command that runs it."""
    file = wire.program(str(folder), module)
    Path(file.path).write_bytes(file.content)
    return [sys.executable, "-I", "-S", "-B", *own_program.entry(file.path, module), *words]
