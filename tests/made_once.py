"""A folder that takes seconds to make, made once for all workers of pytest-xdist."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a folder of this run of the tests with what `make` wrote into it; it is only read.

    The first worker makes it, and those that need it meanwhile wait.

    Args:
        name: one for all tests.
        make: gets an empty folder.
    """
    base = factory.getbasetemp()
    base = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with (base / f"{name}.lock").open("a+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.seek(0)
        whole = lock.read()
        if whole:
            return Path(whole)
        folder = factory.mktemp(name)
        make(folder)
        lock.write(str(folder))
        return folder
