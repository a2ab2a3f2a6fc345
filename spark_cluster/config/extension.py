"""What a project's folder extends the program by: Python files, loaded by path, and others."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from spark_cluster.config.yamlfile import shown
from spark_cluster.errors import InvalidFile, SparkClusterError
from spark_cluster.node.values import PROJECT_PACKAGE

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

T = TypeVar("T")

KNOWN_ISSUES, CHECKS = "known_issues", "checks"
"""Folders of a project."""

SETTLED_S = 2.0
"""Seconds after which a file that was changed again has another time of change: compiled code
remembers that of its source in whole seconds."""


class _Loader(SourceFileLoader):
    """Keeps no compiled code of a file that was changed just now: after the next change within the
    same second, to the same length, it would be taken for current."""

    def set_data(self, path: str, data: ReadableBuffer, *, _mode: int = 0o666) -> None:
        if time.time() - Path(self.path).stat().st_mtime > SETTLED_S:
            super().set_data(path, data, _mode=_mode)


class Extensions:
    """The extensions in a project's folder, as this process has them: modules below a package that
    no other project has, and what was made of its files. They end with this object.

    It may be used by several threads; each piece of code is run once.

    Args:
        folder: of the project.
        must_be_own: raises Refused when others can write a path.

    Attributes:
        package: that its modules are in.
        resource_files: the code that nodes get of its resources, by path in the payload.
    """

    def __init__(self, folder: Path, must_be_own: Callable[[Path, str], None]) -> None:
        self.folder = folder
        self.package = f"{PROJECT_PACKAGE}_{os.urandom(8).hex()}"
        self.resource_files: tuple[tuple[str, bytes], ...] = ()
        self.loading = threading.RLock()
        self._must_be_own = must_be_own
        self._files: dict[tuple[str, str], tuple[Path, ...]] = {}
        self._made: dict[Callable[[], Any], Any] = {}
        weakref.finalize(self, forget, self.package)

    def load_module(self, path: Path, name: str, what: str) -> ModuleType:
        """Run a Python file as a module of this project; see the function."""
        with self.loading:
            return load_module(path, f"{self.package}.{name}", what)

    def files(self, folder: str, suffix: str, mention: bytes = b"") -> tuple[Path, ...]:
        """Return the files of a folder of the project, sorted, as they were when first asked for.

        Args:
            folder: below the project folder.
            suffix: of the files, `.py`.
            mention: a text that at least one of them has; else the folder is another program's and
                is left alone.

        Raises:
            Refused: others can write them.
        """
        with self.loading:
            if (folder, suffix) not in self._files:
                self._files[folder, suffix] = self._look(folder, suffix, mention)
            return self._files[folder, suffix]

    def _look(self, folder: str, suffix: str, mention: bytes) -> tuple[Path, ...]:
        top = self.folder / folder
        if not top.is_dir():
            return ()
        paths = [p for p in sorted(top.glob(f"*{suffix}")) if not p.name.startswith((".", "_"))]
        if not paths or not any(mention in path.read_bytes() for path in paths):
            return ()
        self._must_be_own(top, f"{folder}/ of the project")
        return tuple(paths)

    def made(self, function: Callable[[], T]) -> T:
        """Return what a function makes of this project's files; it is called once."""
        with self.loading:
            if function not in self._made:
                self._made[function] = function()
            found: T = self._made[function]
            return found


_in_use: ContextVar[Callable[[], Extensions] | None] = ContextVar("extensions", default=None)


def extensions_in_use() -> Extensions | None:
    """Return the extensions of the project in use: that of the run which this code belongs to, or
    of the command; None without one.
    """
    provider = _in_use.get()
    return None if provider is None else provider()


@contextlib.contextmanager
def using(provider: Callable[[], Extensions] | None) -> Iterator[None]:
    """Have a project in use in the block, and in the threads that are started in it with
    `runner/parallel.py`.

    Args:
        provider: gives its extensions; called when they are asked for.
    """
    token = _in_use.set(provider)
    try:
        yield
    finally:
        _in_use.reset(token)


def forget(package: str) -> None:
    """Drop the modules of a project."""
    for finder in list(sys.meta_path):
        if getattr(finder, "package", None) == package:
            sys.meta_path.remove(finder)
    for name in [n for n in list(sys.modules) if f"{n}.".startswith(f"{package}.")]:
        sys.modules.pop(name, None)


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
