"""Python files that a user writes (roles, playbooks), loaded by path."""

from __future__ import annotations

import importlib.util
import sys
import time
import traceback
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from spark_cluster.config.yamlfile import shown
from spark_cluster.errors import InvalidFile, SparkClusterError

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


SETTLED_S = 2.0
"""Seconds after which a file that was changed again has another time of change: compiled code
remembers that of its source in whole seconds."""


class _Loader(SourceFileLoader):
    """Keeps no compiled code of a file that was changed just now: after the next change within the
    same second, to the same length, it would be taken for current."""

    def set_data(self, path: str, data: ReadableBuffer, *, _mode: int = 0o666) -> None:
        if time.time() - Path(self.path).stat().st_mtime > SETTLED_S:
            super().set_data(path, data, _mode=_mode)


def load_module(path: Path, name: str, what: str) -> ModuleType:
    """Run a Python file as a module.

    Args:
        path: the file; with a folder's `__init__.py`, modules next to it can be imported too.
        name: the module's name, registered for as long as the program runs (pydantic and
            dataclasses look their module up by name). An earlier one of that name is replaced.
        what: what it is to the user: `role network`.

    Raises:
        InvalidFile: it cannot be read, or raises; with the file and line.
    """
    is_package = path.name == "__init__.py"
    for known in [
        known for known in list(sys.modules) if known == name or known.startswith(f"{name}.")
    ]:
        del sys.modules[known]
    spec = importlib.util.spec_from_file_location(
        name,
        path,
        loader=_Loader(name, str(path)),
        submodule_search_locations=[str(path.parent)] if is_package else None,
    )
    if spec is None or spec.loader is None:
        raise InvalidFile(f"{what}: expected a Python file", where=shown(path))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except SparkClusterError:
        raise
    except (Exception, SystemExit) as error:
        sys.modules.pop(name, None)
        raise broken(error, path, what) from error
    return module


def broken(error: BaseException, path: Path, what: str) -> InvalidFile:
    """Convert an exception from a user's Python file into an error that locates it there.

    Args:
        error: the exception, with its traceback.
        path: the file; lines of other files in its folder count too for a package.
        what: what it is to the user: `role network`.
    """
    return InvalidFile(
        f"{what}: {type(error).__name__}: {_first_line(error)}",
        where=where_raised(error, path) or shown(path),
    )


def where_raised(error: BaseException, path: Path) -> str:
    """`file:line` of the innermost line of the user's own code that an exception came from.

    Args:
        error: the exception, with its traceback.
        path: the user's file; a package's `__init__.py` stands for all files of its folder.

    Returns:
        `""` when no line of it was involved.
    """
    root = path.parent if path.name == "__init__.py" else path
    if isinstance(error, SyntaxError) and error.filename and _within(Path(error.filename), root):
        return f"{shown(Path(error.filename))}:{error.lineno or 1}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if _within(Path(frame.filename), root):
            return f"{shown(Path(frame.filename))}:{frame.lineno}"
    return ""


def _within(path: Path, root: Path) -> bool:
    return path.absolute().is_relative_to(root.absolute())


def _first_line(error: BaseException) -> str:
    text = error.msg if isinstance(error, SyntaxError) else str(error)
    return text.splitlines()[0] if text else "(no message)"
